"""Which minibatches this learner has trained since all last merged, and which of them would outlive it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.learner import Learner
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.training.communicator_wrapper import WrappedCommunicator

__all__ = ["MinibatchTracker"]

T = TypeVar("T")


class MinibatchTracker:
    """A learner's minibatches.

    Its own finished ones are in its own weights.  They are safe, in weights that outlive it, once others have surely
    finished a step with a message that was sent later: what is safe is put down with the runtime, for the others to
    know if we are lost.  With each finished step of ours we know that of

    - what a collective of that step sent, or a request to one that keeps what it was given (``lasting``);
    - what we sent a peer in an exchange, or answered it, when we hear of that peer in a later step or request; also
      when we have heard of anybody in as many later steps as there are learners: each had to hear of others before.

    What is said outside of steps, to claim a minibatch or at a meeting, carries no weights, and makes nothing safe; nor
    does what a group of one says to itself.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.trained: list[int] = []
        self.safe = 0  # how many of ``trained``, from the front
        self.sending = False  # whether a verb that begins now carries our weights
        self.lasting = True  # whether those who serve keep what they were given, also if a step of theirs is undone
        self._heard = 0  # how many will be safe when this step is finished
        self._given: dict[tuple[object, int], int] = {}  # by group and rank: how many our last message carried
        self._sent: deque[int] = deque()  # by step with exchanges, the oldest first: how many they carried

    @property
    def unsafe(self) -> list[int]:
        """What would be lost with us."""
        return self.trained[self.safe :]

    def begin(self, *, keep: bool = False) -> None:
        """Begin a stretch: with nothing, since all have merged, or, where they just met, with what is not safe yet."""
        dropped = self.safe if keep else len(self.trained)
        self.trained = self.trained[dropped:]
        self._given = {source: max(0, count - dropped) for source, count in self._given.items()} if keep else {}
        self._sent = deque(max(0, count - dropped) for count in self._sent if keep)
        self.safe, self._heard, self.sending = 0, max(0, self._heard - dropped), False

    def open(self) -> None:
        """Begin a step, or what comes before a meeting: verbs carry our weights from now on."""
        self.sending = True

    def close(self) -> None:
        """End it: nothing that was done can be undone."""
        self.sending = False
        if self._heard > self.safe:
            self.runtime.mark_safe(self.trained[self.safe : self._heard])
            self.safe = self._heard

    def finished(self, number: int) -> None:
        """Put down a finished minibatch."""
        self.trained.append(number)

    def heard(self, count: int) -> None:
        """Put down that others hold what so many finished minibatches made of our weights."""
        self._heard = max(self._heard, count)

    def answered(self, source: int) -> None:
        """Put down an answer to a peer's request, which carries our weights.

        That is in a thread of its own on processes: the runtime is told with our next minibatch.
        """
        self.heard(self._given.get((None, source), 0))
        self._given[None, source] = len(self.trained)

    def exchanging(self, group: object, to: int, source: int, size: int) -> Callable[[], None]:
        """Put down that an exchange begins; return what to call when it has ended."""
        count, known = len(self.trained), self._given.get((group, source), 0)
        self._given[group, to] = count
        if not self._sent or self._sent[-1] < count:
            self._sent.append(count)
        old = self._sent[-1 - size] if len(self._sent) > size else 0
        while len(self._sent) > size + 1:
            self._sent.popleft()
        return lambda: self.heard(max(known, old))

    def watch(self, comm: Communicator) -> Communicator:
        """Return ``comm``, with its verbs watched where learners can be lost."""
        return _Heard(comm, self) if self.runtime.elastic and comm.size > 1 else comm

    def serving(self, strategy: Strategy) -> Strategy:
        """Return ``strategy`` as requests see it, with its answers watched where learners can be lost."""
        return _Serving(strategy, self) if self.runtime.elastic else strategy


class _Heard(WrappedCommunicator):
    """A communicator that is watched, but for groups of one."""

    def __init__(self, comm: Communicator, ledger: MinibatchTracker) -> None:
        super().__init__(comm, self._note)
        self._ledger = ledger

    def _note(self, awaited: Awaitable[T]) -> Awaitable[T]:
        ledger = self._ledger
        if not ledger.sending:
            return awaited
        count = len(ledger.trained)
        return _Noted(awaited, lambda: ledger.heard(count))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Have ``to`` serve our ``x``."""
        awaited = self._comm.request(x, to)
        return self._note(awaited) if self._ledger.lasting else awaited

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send to one rank, receive from another."""
        awaited = self._comm.exchange(x, to, source)
        return (
            _Noted(awaited, self._ledger.exchanging(self, to, source, self.size)) if self._ledger.sending else awaited
        )

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Make the communicator of the group we are in."""
        made = self._comm.split(groups)
        return _Heard(made, self._ledger) if made.size > 1 else made


class _Noted(Generic[T]):
    def __init__(self, awaited: Awaitable[T], note: Callable[[], None]) -> None:
        self._awaited, self._note = awaited, note

    def __await__(self) -> Generator[Any, Any, T]:
        result = yield from self._awaited.__await__()
        self._note()
        return result


class _Serving(Strategy):
    def __init__(self, strategy: Strategy, ledger: MinibatchTracker) -> None:
        self._strategy, self._ledger = strategy, ledger

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        answer = self._strategy.serve(learner, theirs, source)
        self._ledger.answered(source)
        return answer
