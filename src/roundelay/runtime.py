"""What differs between a simulated and a real learner, besides its communicator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from torch import Tensor

from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.strategy import Strategy

T = TypeVar("T")
Clock = Literal["virtual", "wall"]

MakePlan = Callable[[Sequence[dict[str, Any]], Sequence[int]], dict[str, Any]]
"""Make one plan, as JSON, from the reports of all members and the safe minibatches of lost ones."""


@dataclass(frozen=True)
class Membership:
    """The ranks that train now, as all of them have agreed."""

    generation: int
    rank: int
    size: int
    plan: dict[str, Any] = field(default_factory=dict)


def as_newcomer(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report of a rank that was excluded and joins again: what it has does not count."""
    return {**report, "newcomer": True}


class Trainee(Protocol):
    """One learner and its training, for a runtime that runs the trainings of several learners."""

    @property
    def learner(self) -> Learner:
        """The learner that is trained."""

    def run(self) -> Coroutine[Any, Any, Tensor]:
        """Train to the end; return the consensus."""


class GradientWork(Protocol):
    """The gradient of one minibatch."""

    parts: Sequence[slice]
    """The buckets that `ready` is called with, in this order; empty if the strategy does not use them."""

    def run(self, ready: Callable[[slice], None] | None) -> None:
        """Compute the gradient; call ``ready``, if given, during the backward pass as buckets become final."""

    def ready(self, part: slice) -> None:
        """Tell the strategy that this part of the gradient is final."""


class Runtime(Protocol):
    """One learner's clock, membership and serving; the training loop is the same on all of them."""

    clock: Clock
    record: Record
    elastic: bool
    """Whether the run continues if learners are lost."""
    initial_rank: int
    """Our rank when the run began (servers first); equal to the rank until a learner is lost."""
    initial_size: int
    """Number of ranks when the run began, servers included."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the training loop to its end, if awaits block on this runtime."""

    def now(self) -> float:
        """Return the time in seconds since the run began, by this runtime's clock."""

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Agree with all present ranks on a new membership, and give ``learner`` its communicator.

        ``report`` says what we have and have trained; the first rank to see all reports makes the plan by
        ``make_plan``, and all follow it.  Called at the start, and again after each `LearnerLost`.
        """

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Serve requests with ``strategy`` from now on; earlier requests have waited for this."""

    async def stop_serving(self, learner: Learner) -> None:
        """Stop serving requests; called when all ranks are at a barrier and no request is under way."""

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a counter of this membership, 0 at first; return its value before."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let time pass; requests are served meanwhile."""

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Run ``work``, the gradient of ``learner.frames`` frames, let its time pass, and call it for ready buckets."""

    def computing(self, learner: Learner) -> AbstractContextManager[Callable[[], AbstractContextManager[object]]]:
        """Let a user loop compute the gradient inside; for `roundelay.join`, where awaits block.

        Yields the lock to hold around calls of the strategy meanwhile.
        """

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Record that other learners also have these minibatches."""

    def has_newcomers(self, key: str = "") -> bool:
        """Return whether a newcomer is waiting; all members that pass the same ``key`` get the same answer."""

    def pause_clock(self, *, paused: bool) -> None:
        """Pause or resume the training clock while learners evaluate or save."""

    def capture(self) -> dict[str, Any]:
        """Return what a checkpoint saves of clock and record, as JSON; called at a barrier."""

    def restore(self, state: dict[str, Any]) -> None:
        """Set clock and record to what `capture` returned, or the clock alone to its ``now``; called at a barrier."""
