"""One learner alone in its process: no communication, the same loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import CommunicationError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtime import Clock, GradientWork, MakePlan, Membership
from roundelay.runtimes.strategy_lock import run_blocking
from roundelay.strategy import Strategy

__all__ = ["LocalRuntime", "Settled"]

T = TypeVar("T")


class Settled(Generic[T]):
    """A result that is there already; awaiting it does not wait."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()  # it never waits, but __await__ must be a generator
        return self.value


class _Alone:
    """The communicator of a group of one."""

    rank, size = 0, 1

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        return Settled(x)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        return Settled([x.clone()])

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        return Settled(x)

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        return Settled(x.clone())

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        assert self._runtime.serving is not None, "a request before the strategy was set up"
        learner, strategy = self._runtime.serving
        answer = strategy.serve(learner, x.clone(), 0)
        if isinstance(answer, DeferredReply):
            raise CommunicationError(f"{type(strategy).__name__} lets its only learner wait for itself")
        return Settled(answer.clone())

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        return self


class LocalRuntime:
    """The runtime of a learner that is alone."""

    clock: Clock = "wall"
    elastic = False
    initial_rank, initial_size = 0, 1

    def __init__(self, record: Record | None = None) -> None:
        self.record = record if record is not None else Record(None, clock="wall")
        self.serving: tuple[Learner, Strategy] | None = None
        self._start = time.monotonic()
        self._counts: dict[str, int] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the training loop to its end."""
        return run_blocking(work)

    def now(self) -> float:
        """Return seconds since the start."""
        return time.monotonic() - self._start

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Agree with ourselves."""
        learner.comm = _Alone(self)
        return Membership(0, 0, 1, make_plan([report], []))

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Let our own requests in."""
        self.serving = (learner, strategy)

    async def stop_serving(self, learner: Learner) -> None:
        """Nothing is under way."""

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a number of our own."""
        before = self._counts.get(key, 0)
        self._counts[key] = before + amount
        return Settled(before)

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Take the gradient."""
        begin = self.now()
        work.run(None)
        for part in work.parts:
            work.ready(part)
        self.record.span("compute", "learner 0", begin, self.now(), frames=learner.frames)

    @contextlib.contextmanager
    def computing(self, learner: Learner) -> Iterator[Callable[[], AbstractContextManager[object]]]:
        """Take the time; there is nobody to guard against."""
        begin = self.now()
        yield contextlib.nullcontext
        self.record.span("compute", "learner 0", begin, self.now(), frames=learner.frames)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Nobody outlives us."""

    def has_newcomers(self, key: str = "") -> bool:
        """Nobody ever comes."""
        return False

    def pause_clock(self, *, paused: bool) -> None:
        """Do nothing: the wall clock does not stop."""

    def capture(self) -> dict[str, Any]:
        """Return the time and the record's place."""
        return {"now": self.now(), "record": self.record.mark()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._start = time.monotonic() - state["now"]
        if "record" in state:
            self.record.rewind(state["record"])
