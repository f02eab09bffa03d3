"""Start a run's processes on this host, watch them, and end them all."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roundelay.errors import CommunicationError, SettingsError
from roundelay.runs.record import merge_records
from roundelay.runtimes.entry_point import rebuild_error, report_error
from roundelay.runtimes.fault_plan import FaultPlan
from roundelay.runtimes.processes.fault_injector import FaultInjector
from roundelay.runtimes.processes.fork_server import ForkServer, lend_server
from roundelay.runtimes.processes.hosts import HostInfo, Hosts, fail_run, rendezvous
from roundelay.runtimes.processes.membership import current_id, latest_members, report_death
from roundelay.runtimes.processes.options import Options, ProcessInfo
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, start_store

WATCH_SECONDS = 0.25  # how often to check what is not told by the end of a process
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
RESTART_SECONDS = 1.0  # before the second restart of a learner; twice as long before each further one
SOON_SECONDS = 0.02
SECRET_BYTES = 32
LOOPBACK = "127.0.0.1"
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

    ``entry`` is ``package.module:function`` or ``file.py:function``; settings and results are JSON.  If a learner
    dies, the others continue and its result is ``None``, unless it is restarted (at most ``faults.rejoins`` times) and
    joins them again.  If a learner raises, the run ends and its error is raised here.  With ``hosts``, each host calls
    this with the same arguments and runs its share of the processes.
    """
    if size < 1:
        raise SettingsError(f"learners: at least 1, not {size}")
    if hosts is not None and size < hosts.count:
        raise SettingsError(f"learners: {size} are too few for {hosts.count} hosts")
    options, faults = options or Options(), faults or FaultPlan()
    with rendezvous(hosts, size) if hosts is not None else this_host(size) as host, lend_server() as server:
        store = host.store
        if host.number == 0:
            store.add("ids", size)
        injector = FaultInjector(faults.events, faults.servers, host.ranks, folder) if faults.events else None
        processes = _LearnerProcesses(
            server, store, options.heartbeat_timeout, several_hosts=hosts is not None, restarts=faults.rejoins
        )
        try:
            for rank in host.ranks:
                process = ProcessInfo(rank, size, f"host {host.number}", host.address, elastic=True)
                job = _job(entry, settings, process, host, folder, options)
                processes.start(rank, job | {"slowed": injector.slowed(rank) if injector is not None else []})
            processes.watch(injector)
        except BaseException as error:
            processes.fail(error)
            raise
        finally:
            processes.end()
            if injector is not None:
                injector.close()
            if folder is not None:
                merge_records(folder, keep=True)
        if injector is not None:
            injector.check()
        return [store.get(f"result/{rank}") for rank in range(size)]


@contextlib.contextmanager
def this_host(size: int) -> Iterator[HostInfo]:
    """Host a store for ``size`` processes of this host alone."""
    store, _ = start_store(secret=os.urandom(SECRET_BYTES))
    try:
        yield HostInfo(store, None, 0, range(size), LOOPBACK, store.client.secret)
    finally:
        store.close()


def _job(
    entry: str, settings: Any, process: ProcessInfo, host: HostInfo, folder: Path | None, options: Options
) -> dict[str, Any]:
    """Return all that a learner has to know; it comes from its launcher alone, never from the store."""
    return {
        "entry": entry,
        "settings": settings,
        "process": dataclasses.asdict(process),
        "store": host.store_address,
        "secret": host.secret.hex(),
        "records": str(folder.absolute()) if folder is not None else None,
        "options": dataclasses.asdict(options),
        "environment": {**os.environ, "LOCAL_RANK": str(process.initial_rank - host.ranks[0])},
    }


class _LearnerProcesses:
    """The processes that this launcher has started."""

    def __init__(
        self, server: ForkServer, store: KeyValueStore, heartbeat_timeout: float, *, several_hosts: bool, restarts: int
    ) -> None:
        self._server, self._store, self._heartbeat_timeout, self._restarts = server, store, heartbeat_timeout, restarts
        self._several_hosts = several_hosts  # then another host may have failed
        self._alive: dict[int, int] = {}  # learners by process id
        self._lost: dict[int, str] = {}
        self._jobs: dict[int, dict[str, Any]] = {}  # by learner
        self._restart_at: dict[int, float] = {}  # by learner: when to restart it

    def start(self, learner: int, job: dict[str, Any]) -> None:
        """Start one learner."""
        with self._store.lend() if job["store"] is None else contextlib.nullcontext() as connection:
            process = self._server.start(job, connection)
        self._alive[process], self._jobs[learner] = learner, job
        self._store.set(f"process/{learner}", process)

    def watch(self, injector: FaultInjector | None) -> None:
        """Wait until all have ended; raise the error of the first one that raised."""
        last_end = time.monotonic()
        while self._alive:
            self._restart_due()
            timeout = SOON_SECONDS if self._restart_at else WATCH_SECONDS
            if injector is not None:
                processes = {learner: process for process, learner in self._alive.items()}
                timeout = min(timeout, injector.inject_due(self._store, processes, self._server.signal))
            ended = self._server.ended(timeout)
            if ended is not None:
                self._note(*ended)
                last_end = time.monotonic()
            elif self._several_hosts and (report := self._store.get("failed")) is not None:
                raise rebuild_error(report)
            elif time.monotonic() - last_end > self._heartbeat_timeout and self._only_excluded_left():
                return
        if self._lost and not self._store.has("finished"):
            raise CommunicationError("no learner is left: " + "; ".join(self._lost.values()))

    def _restart_due(self) -> None:
        """Restart the learners that are due, unless the others have finished."""
        for learner, when in list(self._restart_at.items()):
            if time.monotonic() >= when:
                del self._restart_at[learner]
                if not self._store.has("finished"):
                    job = self._jobs[learner]
                    self.start(learner, job | {"attempt": job.get("attempt", 0) + 1})

    def _only_excluded_left(self) -> bool:
        """Return whether the run has finished and all that are still alive were excluded from it: they hang."""
        newest = latest_members(self._store) if self._store.has("finished") else None
        return newest is not None and not {current_id(self._store, i) for i in self._alive.values()} & {*newest[1]}

    def _note(self, process: int, status: int) -> None:
        learner = self._alive.pop(process)
        report = self._store.get(f"error/{learner}")
        if report is not None:
            raise rebuild_error(report)
        # One that ends well before it has a result is missed, too; one that came too late to join is not.
        if status or not self._store.present([f"result/{learner}", "finished"]):
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            self._lost[learner] = f"learner {learner} ended by {how}"
            logger.warning("%s", self._lost[learner])
            report_death(self._store, learner, self._lost[learner])
            attempts = self._jobs[learner].get("attempt", 0)
            if attempts < self._restarts and self._alive:
                # The first restart comes at once; later ones wait, as a learner that keeps dying delays the others.
                self._restart_at[learner] = time.monotonic() + (attempts and RESTART_SECONDS * 2 ** (attempts - 1))

    def fail(self, error: BaseException) -> None:
        """Tell the launchers of other hosts that the run has failed."""
        if self._several_hosts:
            fail_run(self._store, report_error(error, "another host"))

    def end(self) -> None:
        """End all processes that are still there: by SIGTERM, then by SIGKILL."""
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
