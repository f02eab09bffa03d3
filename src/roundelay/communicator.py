"""The verbs by which learners talk to each other; every runtime has its own communicator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from torch import Tensor

__all__ = ["Communicator", "Later"]


class Communicator(Protocol):
    """Five verbs and a way to make smaller groups.

    A verb starts at once and returns an awaitable; await it where the result is needed, and before the step is over.
    `mean`, `gather` and `broadcast` are collectives: every rank of the group calls them, in one order.  A collective
    works in place: leave its tensor alone until then; one that raises has left the tensor as it was.  `exchange`,
    `request` and the root of `broadcast` copy their tensor at once, so that it may change at once.

    What `gather`, `exchange` and `request` return is lent: read it before the next verb of that kind.

    Sums are taken in rank order wherever the runtime has the choice, so that runtimes agree to the bit.
    """

    @property
    def rank(self) -> int:
        """Our place in the group, from 0."""

    @property
    def size(self) -> int:
        """How many are in the group."""

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the mean over the group, sum(w x) / sum(w); left as it is where all weights are 0."""

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Everyone's ``x`` in rank order; sizes may differ, dtypes may not."""

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``root``'s ``x`` into everyone's."""

    def exchange(self, x: Tensor, to: int, of: int) -> Awaitable[Tensor]:
        """Send ``x`` to one rank and receive the tensor that another sends us by the same verb."""

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Have ``to``'s strategy `serve` our ``x``, whatever it is doing, and receive its answer."""

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Make the communicator of the group we are in; every rank names the same partition, in one order."""


class Later:
    """An answer to a request that a later `serve` will give."""

    def __init__(self) -> None:
        self._answer: Tensor | None = None
        self._send: Callable[[Tensor], None] | None = None

    def give(self, answer: Tensor) -> None:
        """Answer now."""
        self._answer = answer
        if self._send is not None:
            self._send(answer)

    def then(self, send: Callable[[Tensor], None]) -> None:
        """Have ``send`` called with the answer once it is given; for runtimes."""
        self._send = send
        if self._answer is not None:
            send(self._answer)
