"""Which minibatches this learner has trained since all last merged, and which of them would outlive it."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, Later
from roundelay.learner import Learner
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.watching import Watched

__all__ = ["Ledger"]

T = TypeVar("T")


class Ledger:
    """A learner's minibatches.

    Its own finished ones are in its own weights.  They are safe, in weights that outlive it, once a verb of a step that
    *began* after their own has been awaited, or a peer that was answered after their step has asked again: what is safe
    is put down with the runtime, for the others to know if we are lost.  What is said outside of steps, to claim a
    minibatch or at a meeting, carries no weights, and makes nothing safe; nor does what a group of one says to itself.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.trained: list[int] = []
        self.safe = 0  # how many of ``trained``, from the front
        self.sending = False  # whether a verb that begins now carries our weights
        self._given: dict[int, int] = {}  # by rank: how many of ``trained`` our last answer carried
        self._taken = 0  # how many of them some peer has surely made use of

    @property
    def unsafe(self) -> list[int]:
        """What would be lost with us."""
        return self.trained[self.safe :]

    def begin(self, *, keep: bool = False) -> None:
        """Begin a stretch: with nothing, since all have merged, or, where they just met, with what is not safe yet."""
        dropped = self.safe if keep else len(self.trained)
        self._given = {of: count - dropped for of, count in self._given.items() if count > dropped}
        self.trained = self.trained[dropped:]
        self.safe, self._taken, self.sending = 0, max(0, self._taken - dropped), False

    def finished(self, number: int) -> None:
        """Put down a finished minibatch."""
        self.trained.append(number)
        self.published(self._taken)

    def published(self, count: int) -> None:
        """Put down that others have what so many finished minibatches made of our weights."""
        if count > self.safe:
            self.runtime.trained(self.trained[self.safe : count])
            self.safe = count

    def answered(self, of: int) -> None:
        """Put down an answer, which carries our weights; whoever asks again has finished the step of the last one.

        That is in a thread of its own on processes: the runtime is told with our next minibatch.
        """
        self._taken = max(self._taken, self._given.get(of, 0))
        self._given[of] = len(self.trained)

    def watch(self, comm: Communicator) -> Communicator:
        """Return ``comm``, with its verbs watched where learners can be lost."""
        return _Heard(comm, self._note) if self.runtime.lossy and comm.size > 1 else comm

    def serving(self, strategy: Strategy) -> Strategy:
        """Return ``strategy`` as requests see it, with its answers watched where learners can be lost."""
        return _Serving(strategy, self) if self.runtime.lossy else strategy

    def _note(self, awaited: Awaitable[T]) -> Awaitable[T]:
        return _Noted(awaited, self) if self.sending else awaited


class _Heard(Watched):
    """A communicator that is watched, but for groups of one."""

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Make the communicator of the group we are in."""
        made = self._comm.split(groups)
        return _Heard(made, self._wrap) if made.size > 1 else made


class _Noted(Generic[T]):
    def __init__(self, awaited: Awaitable[T], ledger: Ledger) -> None:
        self._awaited, self._ledger, self._count = awaited, ledger, len(ledger.trained)

    def __await__(self) -> Generator[Any, Any, T]:
        result = yield from self._awaited.__await__()
        self._ledger.published(self._count)
        return result


class _Serving(Strategy):
    def __init__(self, strategy: Strategy, ledger: Ledger) -> None:
        self._strategy, self._ledger = strategy, ledger

    def serve(self, me: Learner, theirs: Tensor, of: int) -> Tensor | Later:
        answer = self._strategy.serve(me, theirs, of)
        self._ledger.answered(of)
        return answer
