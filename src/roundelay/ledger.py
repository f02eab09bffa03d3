"""Which minibatches of a stretch this learner has trained, and which of them would outlive it."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

from roundelay.communicator import Communicator
from roundelay.runtime import Runtime
from roundelay.watching import Watched

__all__ = ["Ledger"]

T = TypeVar("T")


class Ledger:
    """A learner's minibatches of one stretch.

    Its own finished ones are in its own weights.  They are safe, in weights that outlive it, once a verb that *began*
    after their step has been awaited: what is safe is put down with the runtime, for the others to know if we are lost.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.trained: list[int] = []
        self.safe = 0  # how many of ``trained``, from the front
        self.pending = 0  # minibatches whose gradient is taken: those trained, and the one in hand

    def begin(self) -> None:
        """Start a new stretch."""
        self.trained, self.safe, self.pending = [], 0, 0

    def taken(self) -> None:
        """Put down that the gradient of the minibatch in hand is taken."""
        self.pending = len(self.trained) + 1

    def finished(self, number: int) -> None:
        """Put down a finished minibatch."""
        self.trained.append(number)

    def published(self, count: int) -> None:
        """Put down that a verb which began with ``count`` gradients taken has been awaited."""
        if count > self.safe:
            self.runtime.trained(self.trained[self.safe : count])
            self.safe = min(count, len(self.trained))

    def watch(self, comm: Communicator) -> Communicator:
        """Return ``comm``, with its verbs watched where learners can be lost."""
        return Watched(comm, lambda awaited: _Noted(awaited, self)) if self.runtime.lossy else comm


class _Noted(Generic[T]):
    def __init__(self, awaited: Awaitable[T], ledger: Ledger) -> None:
        self._awaited, self._ledger, self._count = awaited, ledger, ledger.pending

    def __await__(self) -> Generator[Any, Any, T]:
        result = yield from self._awaited.__await__()
        self._ledger.published(self._count)
        return result
