"""What differs between a simulated and a real learner, besides its communicator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.strategy import Strategy

__all__ = ["Clock", "Resolve", "Runtime", "View", "Work"]

T = TypeVar("T")
Clock = Literal["virtual", "wall"]

Resolve = Callable[[Sequence[dict[str, Any]], Sequence[int]], dict[str, Any]]
"""Make one plan of all members' reports and of what the lost ones surely trained; everything in it is JSON."""


@dataclass(frozen=True)
class View:
    """Who is here, as all of them agree: a membership epoch."""

    epoch: int
    rank: int
    size: int
    plan: dict[str, Any] = field(default_factory=dict)


class Work(Protocol):
    """The gradient of one minibatch."""

    parts: Sequence[slice]
    """What `ready` is to be called with, in this order; empty where nobody wants to know."""

    def run(self, ready: Callable[[slice], None] | None) -> None:
        """Take the gradient; call ``ready`` during the backward pass, where it is given, as parts become final."""

    def ready(self, part: slice) -> None:
        """Tell the strategy that this part of the gradient is final."""


class Runtime(Protocol):
    """One learner's clock, membership and serving; the training loop is the same on all of them."""

    clock: Clock
    record: Record
    lossy: bool
    """Whether learners may be lost without the run's end."""
    seat: int
    """Our number among all when the run began, servers first; for as long as nobody is lost, our rank."""
    seats: int
    """How many there were when the run began, servers too."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the training loop to its end, where awaits block."""

    def now(self) -> float:
        """Return the time in seconds since the run began, by this runtime's clock."""

    async def assemble(self, me: Learner, report: dict[str, Any], resolve: Resolve) -> View:
        """Agree with everyone who is here on a new membership epoch, and give ``me`` its communicator.

        ``report`` says what we hold and have trained; the first to see all of them makes the plan by ``resolve``, and
        all go by that one.  Called at the start, and again after each `LearnerLost`.
        """

    def open(self, me: Learner, strategy: Strategy) -> None:
        """Let requests in, to be answered by ``strategy``; those that came before wait for this."""

    async def close(self, me: Learner) -> None:
        """Let no more requests in; called when all have met and none is under way."""

    def count(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a number common to all of this membership epoch, 0 at first; return what it was."""

    async def compute(self, me: Learner, work: Work) -> None:
        """Run ``work``, the gradient of ``me.frames`` frames, let its time pass, and tell it of its ready parts."""

    def computing(self, me: Learner) -> AbstractContextManager[Callable[[], AbstractContextManager[object]]]:
        """Let a loop of the user's own take the gradient inside; for `roundelay.join`, where awaits block.

        Yields what has to be held around calls of the strategy meanwhile.
        """

    def trained(self, numbers: Sequence[int]) -> None:
        """Put down that these minibatches are in weights that outlive us."""

    def newcomers(self, key: str = "") -> bool:
        """Tell whether somebody waits to join; with a ``key``, all of this epoch who ask with it are told the same."""

    def stand_still(self, *, still: bool) -> None:
        """Stop or go on with the clock of training while learners meet to evaluate or to save."""

    def capture(self) -> dict[str, Any]:
        """Return what a checkpoint has to hold of clock and record, as JSON; called when all have met."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with clock and record from what `capture` returned, or from its ``now`` alone, when all have met."""
