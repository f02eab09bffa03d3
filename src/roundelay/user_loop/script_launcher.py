"""Start anyone's script as the learners of one run, so that its loops survive the loss of learners."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from roundelay.errors import CommunicationError, RoundelayError, SettingsError
from roundelay.runs.record import merge_records
from roundelay.runtimes.entry_point import rebuild_error, report_error
from roundelay.runtimes.processes.fork_server import ForkServer, lend_server
from roundelay.runtimes.processes.hosts import HostInfo, Hosts, fail_run, rendezvous
from roundelay.runtimes.processes.launcher import this_host
from roundelay.user_loop.launched_loops import LaunchedLoops
from roundelay.user_loop.learner_output import LearnerOutput, LineReader
from roundelay.user_loop.loop_rank import SERVER_LOST
from roundelay.user_loop.script_process import WORK

REJOINS = 3
WATCH_SECONDS = 0.25  # how often to look for what no event tells
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
RESTART_SECONDS = 1.0  # before the second restart of a learner; twice as long before each further one
SOON_SECONDS = 0.02
logger = logging.getLogger(__name__)


@dataclass
class LaunchedRun:
    """How a launched script has ended: well, else there is an error instead."""

    learners: int
    losses: list[str] = field(default_factory=list)
    """Which learners were lost on this host, and how."""
    restarted: int = 0
    """How many learners were started again on this host."""
    resumed: int = 0
    """How often all of them were."""


def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    learners: int,
    hosts: Hosts | None = None,
    rejoins: int = REJOINS,
    restarts: int = 0,
    logs: str | Path | None = None,
    heartbeat_timeout: float = 30.0,
) -> LaunchedRun:
    """Run ``script`` in ``learners`` processes, whose `roundelay.join` finds the others; return when all have ended.

    A learner that is killed, or exits before its loop has ended, is lost: the others train its minibatches, and it is
    started again at most ``rejoins`` times and let in.  If a script raises, the run ends and its error is raised here.
    If no learner is left, all are started again at most ``restarts`` times, and continue from their ``checkpoints``.
    The first learner has this process's output; lines of the others get their number before them, or go to files in
    the folder ``logs``.  With ``hosts``, each host calls this with the same arguments and runs its share.
    """
    path = _checked(Path(script), learners, hosts, rejoins, restarts)
    folder = Path(logs) if logs is not None else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    run = LaunchedRun(learners)
    while True:
        try:
            with (
                rendezvous(hosts, learners) if hosts is not None else this_host(learners) as host,
                lend_server(WORK.partition(":")[0]) as server,
            ):
                several = hosts is not None
                _Crew(path, arguments, host, server, run, rejoins, folder, heartbeat_timeout, several=several).run()
            return run
        except _Signalled as error:
            logger.warning("launch: %s; all learners are ended", error)
            raise
        except _NoneLeft as error:
            if run.resumed == restarts:
                raise CommunicationError(*error.args) from None
            run.resumed += 1
            logger.warning("%s; starting all again, %d more times if need be", error, restarts - run.resumed)


class _NoneLeft(CommunicationError):
    """All learners are lost."""


def _checked(script: Path, learners: int, hosts: Hosts | None, rejoins: int, restarts: int) -> Path:
    if not script.is_file():
        what = "is a folder" if script.is_dir() else "there is no such file"
        raise SettingsError(f"launch: {script}: {what}; name the Python script to run")
    if learners < 1:
        raise SettingsError(f"launch: learners: at least 1, not {learners}")
    if hosts is not None and learners < hosts.count:
        raise SettingsError(f"launch: learners: {learners} are too few for {hosts.count} hosts")
    for name, number in ("rejoins", rejoins), ("restarts", restarts):
        if number < 0:
            raise SettingsError(f"launch: {name}: at least 0, not {number}")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise SettingsError("launch: RANK is set: torchrun has started this; start the script by one launcher only")
    return script.absolute()


@dataclass
class _Running:
    """A learner's process."""

    learner: int
    attempt: int
    """How often it was lost before."""
    starts: int
    """How often it was started before, also before it had joined."""
    process: int
    output: LearnerOutput


class _Crew:
    """The learners of this host."""

    def __init__(
        self,
        script: Path,
        arguments: Sequence[str],
        host: HostInfo,
        server: ForkServer,
        run: LaunchedRun,
        rejoins: int,
        logs: Path | None,
        heartbeat_timeout: float,
        *,
        several: bool,
    ) -> None:
        self._script, self._arguments, self._host, self._run = script, arguments, host, run
        self._rejoins, self._logs, self._heartbeat_timeout, self._several = rejoins, logs, heartbeat_timeout, several
        self._loops = LaunchedLoops(host.store, run.learners)
        self._server, self._selector = server, selectors.DefaultSelector()
        self._running: dict[int, _Running] = {}
        self._ended: dict[int, str] = {}  # learners that are not there and will not come back, and how they ended
        self._failed_late: list[str] = []
        self._due: dict[int, tuple[float, int, int]] = {}  # by learner: when to start it again, attempt, starts

    def run(self) -> None:
        """Start all learners and wait until they have ended."""
        with self._selector, _noted_signals(self._selector) as stopped:
            self._selector.register(self._server, selectors.EVENT_READ, self._note_end)
            try:
                for learner in self._host.ranks:
                    self._start(learner, 0, 0)
                self._watch(stopped)
                self._judge()
            except BaseException as error:
                if self._several:
                    told = CommunicationError(str(error)) if isinstance(error, _Signalled) else error
                    fail_run(self._host.store, report_error(told, "another host"))
                raise
            finally:
                self._end()
                for folder in map(Path, self._loops.record_folders()):
                    if folder.is_dir():  # another host may have another disk
                        merge_records(folder, keep=True)

    # -- starting -----------------------------------------------------------------------------------------------

    def _start(self, learner: int, attempt: int, starts: int) -> None:
        host, output = self._host, LearnerOutput(learner, self._logs)
        with host.store.lend() if host.store_address is None else contextlib.nullcontext() as connection:
            job = self._job(learner, attempt)
            process = self._server.start(job, connection, streams=output.streams, group=True)
        output.started()
        running = self._running[process] = _Running(learner, attempt, starts, process, output)
        host.store.set(f"process/{learner}", process)
        for reader in running.output.readers:
            self._selector.register(reader.file, selectors.EVENT_READ, functools.partial(self._read, reader))

    def _job(self, learner: int, attempt: int) -> dict[str, Any]:
        """Return all that a learner has to know; it comes from its launcher alone, never from the store."""
        host, shared = self._host, max(1, len(os.sched_getaffinity(0)) // len(self._host.ranks))
        given = os.environ.get("OMP_NUM_THREADS", "")
        about = {"ROUNDELAY_LEARNER": str(learner), "ROUNDELAY_LEARNERS": str(self._run.learners)}
        return {
            "work": WORK,
            "script": str(self._script),
            "arguments": list(self._arguments),
            "learner": learner,
            "learners": self._run.learners,
            "attempt": attempt,
            "job_attempt": self._run.resumed,
            "environment": {**os.environ, **about},
            "path": sys.path[1:] if sys.path[0] in ("", os.getcwd()) else sys.path,
            "threads": int(given) if given.isdecimal() and int(given) else shared,
            "host": f"host {host.number}",
            "address": host.address,
            "store": host.store_address,
            "secret": host.secret.hex(),
            "heartbeat_timeout": self._heartbeat_timeout,
        }

    def _read(self, reader: LineReader) -> None:
        if not reader.closed and not reader.read():
            self._selector.unregister(reader.file)

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self, stopped: Callable[[], int | None]) -> None:
        while self._running or self._due:
            for learner, (when, attempt, starts) in list(self._due.items()):
                if time.monotonic() >= when:
                    del self._due[learner]
                    if not self._loops.is_finished():
                        self._run.restarted += 1
                        self._start(learner, attempt, starts)
            while self._server.has_events:
                self._note_end()
            for key, _ in self._selector.select(SOON_SECONDS if self._due else WATCH_SECONDS):
                key.data()
            if (number := stopped()) is not None:
                raise KeyboardInterrupt if number == signal.SIGINT else _Signalled(number)
            for learner, how in self._ended.items():
                self._loops.report_absence(learner, how)
            if self._several and (report := self._host.store.get("failed")) is not None:
                raise rebuild_error(report)

    def _note_end(self) -> None:
        """Note the end of a process: whether it was a loss, and whether the learner comes back."""
        running, status = self._reap()
        learner = running.learner
        report = self._host.store.get(f"error/{learner}/{running.attempt}")
        if report is not None:
            error = rebuild_error(report)
            raise _NoneLeft(*error.args) if SERVER_LOST in str(error) else error
        if (why := self._host.store.get(f"away/{learner}")) is not None:
            logger.warning("learner %d does not come back: %s", learner, why)
            return
        joined = self._loops.joined(learner)
        if joined and self._loops.left(learner):
            if status:
                self._failed_late.append(f"learner {learner} ended by {_how(status)} after its training")
            return
        how = f"learner {learner} ended by {_how(status)}" + ("" if joined else " before it joined")
        if not joined and status == 0:
            self._ended[learner] = how  # a script that never joins; the end of all says so
            return
        self._run.losses.append(how)
        again = running.starts < self._rejoins and (bool(self._running) or bool(self._due) or self._several)
        logger.warning("%s; %s", how, self._outlook(again=again))
        if joined or not again:
            self._loops.report_end(learner, how)
            self._ended[learner] = how
        if again:
            # The first restart comes at once; later ones wait, as a learner that keeps dying delays the others.
            wait = running.starts and RESTART_SECONDS * 2 ** (running.starts - 1)
            self._due[learner] = time.monotonic() + wait, running.attempt + joined, running.starts + 1

    def _outlook(self, *, again: bool) -> str:
        if again:
            return "it is started again"
        return "the others continue" if self._running else "no other is left"

    def _judge(self) -> None:
        """Raise an error unless the script has trained on all learners to its end."""
        if self._run.losses and not self._loops.is_finished():
            raise _NoneLeft(f"{self._script.name}: no learner is left: " + "; ".join(self._run.losses))
        if not len(self._loops) and self._run.learners > 1:
            raise SettingsError(
                f"{self._script.name} never called roundelay.join: it ran {self._run.learners} times, each alone; "
                "call join in it, or run it by python"
            )
        if self._failed_late:
            raise RoundelayError(f"{self._script.name}: " + "; ".join(self._failed_late))

    # -- ending -------------------------------------------------------------------------------------------------

    def _reap(self) -> tuple[_Running, int]:
        """Return a process that has ended, and its exit status."""
        ended = self._server.ended(None)
        assert ended is not None
        running = self._running.pop(ended[0])
        for reader in running.output.readers:
            with contextlib.suppress(KeyError):  # it may have come to its end
                self._selector.unregister(reader.file)
            reader.close()
        return running, ended[1]

    def _end(self) -> None:
        """End all processes that are still there: by SIGTERM, then by SIGKILL."""
        deadline, number = time.monotonic() + GRACE_SECONDS, signal.SIGTERM
        self._signal_all(number)
        while self._running:
            if number == signal.SIGTERM and time.monotonic() > deadline:
                number = signal.SIGKILL
                self._signal_all(number)
            if self._server.has_events or select.select([self._server], [], [], SOON_SECONDS)[0]:
                self._reap()

    def _signal_all(self, number: int) -> None:
        for running in self._running.values():
            self._server.signal(running.process, number)


class _Signalled(SystemExit):
    """The launcher was sent a signal that ends it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name

    def __str__(self) -> str:
        return f"ended by {self.name}"


def _how(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


@contextlib.contextmanager
def _noted_signals(selector: selectors.BaseSelector) -> Iterator[Callable[[], int | None]]:
    """Note SIGINT, SIGTERM and SIGHUP instead of acting at any moment; yield what returns the first one."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    awake, asleep = socket.socketpair()
    asleep.setblocking(False)
    with awake, asleep:
        before = signal.set_wakeup_fd(asleep.fileno(), warn_on_full_buffer=False)
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handlers = [signal.signal(number, note) for number in numbers]
        selector.register(awake, selectors.EVENT_READ, lambda: awake.recv(4096))
        try:
            yield lambda: received[0] if received else None
        finally:
            selector.unregister(awake)
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
            signal.set_wakeup_fd(before)
