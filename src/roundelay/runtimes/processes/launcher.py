"""Start a run's processes on this host, watch over them, and leave none behind."""

from __future__ import annotations

import dataclasses
import logging
import signal
import time
from pathlib import Path
from typing import Any

from roundelay import errors
from roundelay.errors import CommunicationError, RoundelayError, SettingsError
from roundelay.runs.record import merge_records
from roundelay.runtimes.fault_plan import FaultPlan
from roundelay.runtimes.processes.fault_injector import FaultInjector
from roundelay.runtimes.processes.fork_server import ForkServer, lend_server
from roundelay.runtimes.processes.hosts import HostInfo, Hosts, fail_run, rendezvous
from roundelay.runtimes.processes.membership import current_id, latest_members, report_death
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore
from roundelay.runtimes.processes.transport_choice import Options, ProcessInfo

__all__ = ["run"]

WATCH_SECONDS = 0.25  # how often to look at what the processes' ends do not tell
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
RESTART_SECONDS = 1.0  # before a learner is started for the third time; twice as long before each further time
SOON_SECONDS = 0.02
logger = logging.getLogger(__name__)


def run(
    entry: str,
    settings: Any,
    *,
    size: int,
    folder: Path | None = None,
    options: Options | None = None,
    hosts: Hosts | None = None,
    faults: FaultPlan | None = None,
) -> list[Any]:
    """Call ``entry`` as ``function(runtime, settings)`` in ``size`` processes; return what each returned.

    ``entry`` is ``package.module:function`` or ``file.py:function``; settings and results are JSON.  A learner that
    dies is mourned by the others, who go on, and has ``None`` for its result, unless it is started again, as often as
    ``faults.rejoins`` says, and joins them.  One that raises ends the run, and we raise what it did.  With ``hosts``,
    called alike on each of them, every host runs its share of the processes.
    """
    if size < 1:
        raise SettingsError(f"learners: at least 1, not {size}")
    if hosts is not None and size < hosts.count:
        raise SettingsError(f"learners: {size} are too few for {hosts.count} hosts")
    options = options or Options()
    with rendezvous(hosts) as meeting, lend_server() as server:
        store = meeting.store
        store.set(f"settings/{meeting.number}", settings)
        if meeting.number == 0:
            store.add("ids", size)
        faults = faults or FaultPlan()
        havoc = FaultInjector(faults.events, faults.servers, meeting.share(size), folder)
        crew = _LearnerProcesses(
            server, store, options.heartbeat_timeout, several_hosts=hosts is not None, restarts=faults.rejoins
        )
        try:
            for learner in meeting.share(size):
                place = ProcessInfo(learner, size, f"host {meeting.number}", meeting.address, elastic=True)
                job = _job(entry, place, meeting, folder, options)
                crew.start(learner, job | {"slowed": havoc.slowed(learner)})
            crew.watch(havoc)
        except BaseException as error:
            crew.fail(error)
            raise
        finally:
            crew.end()
            havoc.close()
            if folder is not None:
                merge_records(folder, keep=True)
        havoc.check()
        return [store.get(f"result/{learner}") for learner in range(size)]


def _job(entry: str, place: ProcessInfo, meeting: HostInfo, folder: Path | None, options: Options) -> dict[str, Any]:
    return {
        "entry": entry,
        "place": dataclasses.asdict(place),
        "store": meeting.store_address,
        "records": str(folder.absolute()) if folder is not None else None,
        "options": dataclasses.asdict(options),
        "host_number": meeting.number,
    }


class _LearnerProcesses:
    """The processes that this launcher has started."""

    def __init__(
        self, server: ForkServer, store: KeyValueStore, heartbeat_timeout: float, *, several_hosts: bool, restarts: int
    ) -> None:
        self._server, self._store, self._heartbeat_timeout, self._restarts = server, store, heartbeat_timeout, restarts
        self._several_hosts = several_hosts  # hosts: whether others may have failed
        self._alive: dict[int, int] = {}  # by process id: the learner's
        self._lost: dict[int, str] = {}
        self._jobs: dict[int, dict[str, Any]] = {}  # by learner
        self._restart_at: dict[int, float] = {}  # by learner: when to start it again

    def start(self, learner: int, job: dict[str, Any]) -> None:
        """Start one learner."""
        process = self._server.start(job)
        self._alive[process], self._jobs[learner] = learner, job
        self._store.set(f"process/{learner}", process)

    def watch(self, havoc: FaultInjector) -> None:
        """Wait until all have ended; raise what the first one to raise did."""
        last_end = time.monotonic()
        while self._alive:
            self._restart_due()
            processes = {learner: process for process, learner in self._alive.items()}
            patience = min(WATCH_SECONDS, havoc.inject_due(self._store, processes, self._server.signal))
            ended = self._server.ended(patience if not self._restart_at else min(patience, SOON_SECONDS))
            if ended is not None:
                self._note(*ended)
                last_end = time.monotonic()
            elif self._several_hosts and (told := self._store.get("failed")) is not None:
                raise rebuild(told)
            elif time.monotonic() - last_end > self._heartbeat_timeout and self._only_excluded_left():
                return
        if self._lost and not self._store.has("finished"):
            raise CommunicationError("no learner is left: " + "; ".join(self._lost.values()))

    def _restart_due(self) -> None:
        """Start those again whose time has come, unless the others have finished meanwhile."""
        for learner, when in list(self._restart_at.items()):
            if time.monotonic() >= when:
                del self._restart_at[learner]
                if not self._store.has("finished"):
                    job = self._jobs[learner]
                    self.start(learner, job | {"attempt": job.get("attempt", 0) + 1})

    def _only_excluded_left(self) -> bool:
        """Tell whether those still alive are no members: they hang, the others went on without them and finished."""
        newest = latest_members(self._store) if self._store.has("finished") else None
        return newest is not None and not {current_id(self._store, i) for i in self._alive.values()} & {*newest[1]}

    def _note(self, process: int, status: int) -> None:
        learner = self._alive.pop(process)
        told = self._store.get(f"error/{learner}")
        if told is not None:
            raise rebuild(told)
        if status:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            self._lost[learner] = f"learner {learner} ended by {how}"
            logger.warning("%s", self._lost[learner])
            report_death(self._store, learner, self._lost[learner])
            attempts = self._jobs[learner].get("attempt", 0)
            if attempts < self._restarts and self._alive:
                # At once the first time; later not so soon, lest one that keeps dying keep the others busy.
                self._restart_at[learner] = time.monotonic() + (attempts and RESTART_SECONDS * 2 ** (attempts - 1))

    def fail(self, error: BaseException) -> None:
        """Tell the launchers of other hosts that this run is to end."""
        if self._several_hosts:
            message = str(error) if isinstance(error, RoundelayError) else f"another host: {type(error).__name__}"
            fail_run(self._store, {"type": type(error).__name__, "message": message, "traceback": ""})

    def end(self) -> None:
        """End whoever is still there: ask, then insist."""
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, None)):
            for process in self._alive:
                self._server.signal(process, number)
            deadline = time.monotonic() + (seconds or 0.0)
            while self._alive:
                left = None if seconds is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                ended = self._server.ended(left)
                if ended is not None:
                    self._alive.pop(ended[0], None)


def rebuild(told: dict[str, str]) -> RoundelayError:
    """Make the error that a learner told of: of the same class where it is one of ours."""
    kind = getattr(errors, told["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, RoundelayError)):
        kind = RoundelayError
    error = kind.__new__(kind)
    error.args = (told["message"],)
    error.add_note(told["traceback"])
    return error
