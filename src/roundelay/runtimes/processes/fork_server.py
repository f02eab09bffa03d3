"""A process that has imported torch and forks learners, so that a run starts in milliseconds.

It has one thread and only the connection to its launcher: forking is safe there, unlike in the launcher, whose store
has threads.  The launcher's end, by a kill too, closes that connection, and the server ends all learners; if the server
itself ends, the operating system does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from roundelay.errors import CommunicationError
from roundelay.runtimes.entry_point import find_entry

PR_SET_PDEATHSIG = 1
STANDARD_STREAMS = 3
MAX_FILES = STANDARD_STREAMS + 2  # and the job, and what is inherited
_LARGEST = 1 << 20


class ForkServer:
    """The launcher's side: starts and signals processes, and reports their ends.

    ``preload`` names a module that the server imports first, beside torch.
    """

    def __init__(self, preload: str | None = None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}  # its threads do not survive a fork
        command = [sys.executable, "-m", "roundelay.runtimes.processes.fork_server", str(theirs.fileno())]
        command += [preload] if preload is not None else []
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until it ignores Ctrl-C itself
        try:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)  # noqa: S603
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._events: deque[dict[str, Any]] = deque()
        self.is_listening = True

    def fileno(self) -> int:
        """Return the file that is readable if a process has ended, for a selector."""
        return self._socket.fileno()

    def start(
        self,
        job: dict[str, Any],
        inherited: socket.socket | None = None,
        *,
        streams: Sequence[int] = range(STANDARD_STREAMS),
        group: bool = False,
    ) -> int:
        """Start a process for ``job``, with our standard streams or others; return its process id.

        ``job["work"]``, if there is one, names the function that does the job.  With ``group``, the process is the
        first of a group, which signals reach as a whole, and which ends with it unless it ends well.

        The job is in a file without a name, which nobody else can open: it may contain secrets, and be long.  The file
        number of the ``inherited`` socket is in the process's own job, as ``inherited``.
        """
        whole = {"environment": dict(os.environ), "folder": os.getcwd(), "path": sys.path, **job}
        with open(os.memfd_create("roundelay-job"), "w+b") as file:
            file.write(json.dumps(whole).encode())
            file.flush()
            files = [*streams, file.fileno(), *([inherited.fileno()] if inherited is not None else [])]
            socket.send_fds(self._socket, [json.dumps({"start": True, "group": group}).encode()], files)
            return self._started()

    def _started(self) -> int:
        while True:
            event = self._receive(None)
            assert event is not None
            if "started" in event:
                return int(event["started"])
            self._events.append(event)

    def signal(self, process: int, number: int) -> None:
        """Send a signal to a process that this server has started and that has not ended."""
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"signal": number, "process": process}).encode())

    def ended(self, timeout_seconds: float | None) -> tuple[int, int] | None:
        """Wait until a process ends; return its id and its exit status, as in `subprocess`."""
        event = self._events.popleft() if self._events else self._receive(timeout_seconds)
        return (event["ended"], event["status"]) if event is not None else None

    @property
    def has_events(self) -> bool:
        """Whether `ended` has something to return that came while a process was started."""
        return bool(self._events)

    def close(self) -> None:
        """End the server and all processes that it has started."""
        self._socket.close()
        self._process.wait()

    def _receive(self, timeout_seconds: float | None) -> dict[str, Any] | None:
        self._socket.settimeout(timeout_seconds)
        try:
            data = self._socket.recv(_LARGEST)
        except TimeoutError:
            return None
        finally:
            self._socket.settimeout(None)
        if not data:
            self.is_listening = False
            raise CommunicationError("the process that starts learners has ended")
        event: dict[str, Any] = json.loads(data)
        return event


class _Idle:
    """Fork servers that wait for their next run."""

    def __init__(self) -> None:
        self._servers: dict[str | None, list[ForkServer]] = {}  # by what they have loaded
        self._lock = threading.Lock()
        self._owner = os.getpid()
        atexit.register(self.close)

    def take(self, preload: str | None) -> ForkServer:
        with self._lock:
            idle = self._servers.get(preload) if self._owner == os.getpid() else None
            return idle.pop() if idle else ForkServer(preload)

    def give(self, server: ForkServer, preload: str | None) -> None:
        with self._lock:
            self._servers.setdefault(preload, []).append(server)

    def close(self) -> None:
        if self._owner == os.getpid():
            for idle in self._servers.values():
                while idle:
                    idle.pop().close()


_idle = _Idle()


@contextlib.contextmanager
def lend_server(preload: str | None = None) -> Iterator[ForkServer]:
    """Lend a fork server for one run, which ends what it starts; keep it for the next run if it still listens."""
    server = _idle.take(preload)
    try:
        yield server
    except BaseException as error:
        if isinstance(error, Exception) and server.is_listening:
            _idle.give(server, preload)
        else:
            server.close()
        raise
    _idle.give(server, preload)


# -- the server's side --------------------------------------------------------------------------------------------


class _Server:
    def __init__(self, connection: socket.socket, work: Callable[[dict[str, Any]], int]) -> None:
        self._socket, self._work = connection, work
        self._children: set[int] = set()
        self._groups: set[int] = set()  # children that are the first of a group

    def run(self) -> None:
        """Start processes until the launcher is gone."""
        awake, asleep = socket.socketpair()
        awake.setblocking(False)
        asleep.setblocking(False)
        signal.set_wakeup_fd(asleep.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher handles Ctrl-C
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(awake, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is awake:
                        with contextlib.suppress(BlockingIOError):
                            awake.recv(4096)
                        self._reap()
                    elif not self._obey():
                        return

    def end_all(self) -> None:
        """End all children."""
        signal.set_wakeup_fd(-1)  # its socket is closed
        for child in self._children:
            self._signal(child, signal.SIGKILL)

    def _signal(self, child: int, number: int) -> None:
        """Send a signal to a child that has not been waited for, so that its number is still its own."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if child in self._groups else os.kill)(child, number)

    def _obey(self) -> bool:
        try:
            data, files, _, _ = socket.recv_fds(self._socket, _LARGEST, MAX_FILES)
        except OSError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if "start" in message:
            self._fork(files, group=message["group"])
        elif message["process"] in self._children:
            self._signal(message["process"], message["signal"])
        return True

    def _fork(self, files: list[int], *, group: bool) -> None:
        parent = os.getpid()
        child = os.fork()
        if group:
            os.setpgid(child, child)  # here and there: neither waits for the other
        if child:
            self._children.add(child)
            self._groups |= {child} if group else set()
            for file in files:
                os.close(file)
            self._tell({"started": child})
            return
        status = 1
        try:
            job = _become_learner(parent, files)
            self._socket.close()
            status = (find_entry(job["work"]) if "work" in job else self._work)(job)
        except SystemExit:
            pass  # ended by SIGTERM before it began
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while self._children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            if ended.si_pid in self._groups and ended.si_status:
                self._signal(ended.si_pid, signal.SIGKILL)  # what it has started and left behind
            child, status = os.waitpid(ended.si_pid, 0)
            self._children.discard(child)
            self._groups.discard(child)
            self._tell({"ended": child, "status": os.waitstatus_to_exitcode(status)})

    def _tell(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps(event).encode())


def _become_learner(parent: int, files: list[int]) -> dict[str, Any]:
    """Take over what the launcher has sent; return the job."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    streams, (written, *inherited) = files[:STANDARD_STREAMS], files[STANDARD_STREAMS:]
    for stream, number in enumerate(streams):
        os.dup2(number, stream)
        os.close(number)
    with open(written, "rb") as file:
        file.seek(0)
        job: dict[str, Any] = json.load(file)
    job["inherited"] = inherited[0] if inherited else None
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.path[:] = job["path"]
    return job


def main() -> None:
    """Serve the launcher at the other end of the socket given on the command line."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    import torch

    from roundelay.runtimes.processes import learner_process

    for name in sys.argv[2:]:
        importlib.import_module(name)

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # the first optimizer imports much of torch
    gc.collect()
    gc.freeze()  # otherwise a child's garbage collection copies every shared page
    server = _Server(connection, learner_process.work)
    try:
        server.run()
    finally:
        server.end_all()


if __name__ == "__main__":
    main()
