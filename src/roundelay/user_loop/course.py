"""How far a learner has come in the loops of its script, so that one that is behind can catch up.

All learners run the same script, and each counts the loops that it has begun.  After a loss those who agree on a new
membership compare how far they are.  Who is behind, by a moment or because it was started again, gets what it needs of
one of the furthest: loops that are over give it no minibatch, and it enters the current one in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from roundelay.errors import CommunicationError

Way = Literal["together", "skip", "enter"]
"""How to begin a loop: with all others; not at all, as it is over; or in the middle of it."""


NO_SHARE = "a learner that was lost cannot come back to a loop that takes its minibatches without share"


class CannotComeBack(CommunicationError):
    """A learner that was lost has no place to come back to; the others go on without it."""


class LoopState(msgspec.Struct):
    """What one that is behind must know of a learner that is further."""

    loops: int = 0
    at_rest: bool = True
    consensuses: int = 0
    """How many the loop has had, in the middle of it."""
    epochs: int = 0
    loops_before_epoch: int = 0
    """How many loops had begun when the current epoch did."""
    minibatches: int = 0
    """The position of the last checkpoint."""
    first: int = 0
    """The number of the loop's first minibatch."""
    shared: bool = True
    """Whether the loop's minibatches come from `share`."""
    own: bool = False
    """Whether each learner has its own minibatches."""
    order: list[list[int]] | None = None
    """The samples of each minibatch, if a sampler has chosen them."""
    rates: list[float] = []
    """The rate of each group of the optimizer."""

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """What says which of two is further."""
        return (1, self.loops, int(self.at_rest), self.consensuses)


NOT_JOINED = (0, 0, 0, 0)
"""The rank of one that has not finished its `join`."""


@dataclass
class Course:
    """Where a learner is in its script's loops, and where the furthest was when they last compared."""

    now: LoopState = field(default_factory=LoopState)
    joined: bool = False
    ahead: LoopState | None = None

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """How far we are."""
        return self.now.rank if self.joined else NOT_JOINED

    @property
    def is_behind(self) -> bool:
        """Whether others have begun a loop that we have not reached, or are past the one that we reach next."""
        return self.ahead is not None and self.ahead.loops > self.now.loops

    def way(self) -> Way:
        """Return how to begin our next loop."""
        ahead, next_loop = self.ahead, self.now.loops + 1
        if ahead is None or next_loop > ahead.loops:
            return "together"
        return "skip" if next_loop < ahead.loops or ahead.at_rest or ahead.own else "enter"

    def skip(self) -> None:
        """Pass a loop that is over."""
        self.now.loops += 1
        if self.ahead is not None and self.ahead.loops <= self.now.loops and self.ahead.at_rest:
            self.ahead = None

    def begin(self, first: int, *, shared: bool, own: bool, order: Sequence[Sequence[int]] | None) -> None:
        """Note that all have begun our next loop."""
        now = self.now
        now.loops, now.at_rest, now.consensuses, now.first = now.loops + 1, False, 0, first
        now.shared, now.own = shared, own
        now.order = [list(batch) for batch in order] if order is not None else None
        self.ahead = None

    def enter(self) -> LoopState:
        """Note that we are in the loop of the furthest now; return what it is."""
        assert self.ahead is not None
        ahead, self.ahead = self.ahead, None
        now = self.now
        now.loops, now.at_rest, now.consensuses, now.first = now.loops + 1, False, ahead.consensuses, ahead.first
        now.shared, now.own, now.order = ahead.shared, ahead.own, ahead.order
        return ahead

    def rest(self) -> None:
        """Note that the loop is over."""
        self.now.at_rest, self.now.order = True, None

    def begin_late(self, published: dict[str, Any]) -> int:
        """Begin in the epoch that the others have published; return its number."""
        others = msgspec.convert(published, LoopState)
        self.now.loops = others.loops_before_epoch
        return others.epochs

    def begin_epoch(self) -> None:
        """Note that an epoch begins."""
        self.now.loops_before_epoch = self.now.loops

    def note_published(self, published: dict[str, Any] | None) -> None:
        """Take over where the others are from what they have published; we have not asked to join them yet."""
        self.ahead = msgspec.convert(published, LoopState) if published is not None else None
        if self.ahead is not None and not self.ahead.shared:
            raise CannotComeBack(NO_SHARE)

    def catch_up(self, encoded: dict[str, Any]) -> LoopState:
        """Take over from the furthest, after all have compared."""
        ahead = msgspec.convert(encoded, LoopState)
        if not ahead.shared and not ahead.at_rest and ahead.loops > self.now.loops:
            raise CannotComeBack(NO_SHARE)
        self.ahead = ahead
        self.now.minibatches = ahead.minibatches
        if not self.joined:
            self.joined = True
        return ahead

    def encode(self) -> dict[str, Any]:
        """Return where we are, as JSON."""
        made: dict[str, Any] = msgspec.to_builtins(self.now)
        return made
