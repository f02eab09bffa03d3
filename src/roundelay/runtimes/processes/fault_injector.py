"""Inject planned faults into the processes that a launcher has started."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from roundelay.errors import SettingsError
from roundelay.runs.record import Record
from roundelay.runtimes.fault_plan import PlannedFault, check_all_fired
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore


class FaultInjector:
    """The planned faults of the processes of one launcher, each injected at its time."""

    def __init__(self, events: Sequence[PlannedFault], servers: int, mine: Sequence[int], folder: Path | None) -> None:
        for event in events:
            if event.what == "isolate":
                raise SettingsError(
                    f"--faults: {event}: learners are isolated in the simulator only; use --on simulator"
                )
        self._ranks = {event: [rank for rank in event.ranks(servers) if rank in mine] for event in events}
        self._names = {rank: f"server {rank}" if rank < servers else f"learner {rank - servers}" for rank in mine}
        self._unfired = [event for event in events if self._ranks[event]]
        self._due: list[tuple[float, int, int | None, PlannedFault]] = []  # time, rank, signal, fault
        for event in self._unfired:
            number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(event.what)
            for rank in self._ranks[event]:
                self._due.append((event.at_seconds, rank, number, event))
                if event.what == "stop":
                    self._due.append((event.at_seconds + event.seconds, rank, signal.SIGCONT, event))
        self._due.sort(key=lambda due: due[0])
        self._record = Record(folder / "record-faults.jsonl", clock="wall") if folder is not None and events else None
        self._began: float | None = None

    def slowed(self, rank: int) -> list[tuple[float, float, float]]:
        """Return begin, end and factor of a process's planned slowness."""
        return [
            (event.at_seconds, event.at_seconds + event.seconds if math.isfinite(event.seconds) else 1e18, event.factor)
            for event, ranks in self._ranks.items()
            if event.what == "slow" and rank in ranks
        ]

    def inject_due(self, store: KeyValueStore, alive: dict[int, int], send: Callable[[int, int], None]) -> float:
        """Inject the faults that are due (``alive``: processes by rank); return the seconds to wait."""
        if not self._due:
            return math.inf
        if self._began is None:
            self._began = store.get("began")
            if self._began is None:
                return 0.02
        now = time.time() - self._began
        late = [due for due in self._due if due[0] <= now]
        for due in late:
            _, rank, number, event = due
            if rank in alive:  # a learner that is being restarted gets its fault when it is there
                self._due.remove(due)
                if number is not None:
                    send(alive[rank], number)
                self._note(event, rank, number, now)
        return max(0.001, min((due[0] for due in self._due), default=math.inf) - now)

    def _note(self, event: PlannedFault, rank: int, number: int | None, now: float) -> None:
        if number != signal.SIGCONT and event in self._unfired:
            self._unfired.remove(event)
        if self._record is not None:
            what = "continue" if number == signal.SIGCONT else event.what
            self._record.write("fault", self._names[rank], now, kind=what, given=str(event))
            self._record.flush()

    def close(self) -> None:
        """Close the record."""
        if self._record is not None:
            self._record.close(0.0)
            self._record = None

    def check(self) -> None:
        """Raise if a fault was never injected."""
        check_all_fired(self._unfired, time.time() - self._began if self._began is not None else 0.0)
