"""The clock and the record of a runtime in wall time."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from roundelay.learner import Learner
from roundelay.runs.record import Kind, Record
from roundelay.runtime import Clock
from roundelay.runtimes.blocking import StrategyLock, run_blocking

T = TypeVar("T")


class TimeRecorder(Protocol):
    """What communicators need to record time and bytes."""

    def now(self) -> float:
        """Return the seconds since the run began."""

    def span(self, kind: Kind, begin: float, end: float | None = None, **what: Any) -> None:
        """Record how the time from ``begin`` to ``end`` was spent; by default until now."""

    def count_bytes(self, count: float) -> None:
        """Add to the bytes that this learner has sent."""


def sleep(recorder: TimeRecorder, lock: StrategyLock, seconds: float) -> None:
    """Sleep without the lock, which the caller holds; record it as waiting."""
    begin = recorder.now()
    with lock.released():
        time.sleep(seconds)
    recorder.span("wait", begin)


class WallClock:
    """The part that all runtimes of real time share: awaiting blocks, seconds are real ones."""

    clock: Clock = "wall"

    def __init__(self, record: Record, initial_rank: int, initial_size: int) -> None:
        self.record, self.initial_rank, self.initial_size = record, initial_rank, initial_size
        self.learner: Learner | None = None
        """Our learner, from the first rendezvous on."""
        self._paused_since: float | None = None
        self.set_clock(0.0)

    @property
    def member(self) -> str:
        """Our name in records and messages."""
        if self.learner is None:
            return f"learner {self.initial_rank}"
        return f"{'server' if self.learner.is_server else 'learner'} {self.learner.index}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the training loop to its end."""
        return run_blocking(work)

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._origin

    def set_clock(self, seconds: float) -> None:
        """Let the run have begun ``seconds`` ago."""
        self._origin = time.monotonic() - seconds

    def span(self, kind: Kind, begin: float, end: float | None = None, **what: Any) -> None:
        """Record how time was spent; while the clock is paused, all of it counts as `evaluate`."""
        if self._paused_since is None:
            self.record.span(kind, self.member, begin, self.now() if end is None else end, **what)

    def count_bytes(self, count: float) -> None:
        """Add to the bytes that this learner has sent."""
        self.record.add(self.member, "bytes", count)

    def pause_clock(self, *, paused: bool) -> None:
        """Record the time in which learners evaluate or save as `evaluate`."""
        if paused:
            self._paused_since = self.now()
        elif self._paused_since is not None:
            since, self._paused_since = self._paused_since, None
            self.span("evaluate", since)

    def capture(self) -> dict[str, Any]:
        """Return the time and the position in the record."""
        return {"now": self.now(), "record": self.record.mark()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `capture` returned."""
        self.set_clock(state["now"])
        self._paused_since = self.now()
        if "record" in state:
            self.record.rewind(state["record"])
