"""The minibatches this learner trained since the last merge, and which of them other learners have."""

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

T = TypeVar("T")


class MinibatchTracker:
    """The minibatches of one learner.

    Its finished minibatches are in its own weights.  A minibatch is safe once another learner has surely finished a
    step with a message sent after it.  The runtime stores the safe ones, so that the others can read them if we are
    lost.  Each finished step of ours makes these safe:

    - the minibatches that a collective of that step carried, or a request to a rank that keeps what it is sent
      (``requests_are_kept``);
    - the minibatches that an exchange or a reply of ours carried to a peer, once we hear from that peer in a later step
      or request; also once we have heard from any peers in as many later steps as there are learners.

    Messages outside of steps, to claim a minibatch or at a synchronization point, carry no weights and make nothing
    safe; nor does a group of one.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.trained: list[int] = []
        self.safe = 0  # how many of ``trained``, from the front
        self.in_step = False  # whether an operation that starts now carries our weights
        self.requests_are_kept = True  # whether a server keeps what it is sent, even if its own step is undone
        self._heard = 0  # how many are safe once this step is finished
        self._given: dict[tuple[object, int], int] = {}  # by group and rank: how many our last message carried
        self._sent: deque[int] = deque()  # by step with exchanges, the oldest first: how many they carried

    @property
    def unsafe(self) -> list[int]:
        """The trained minibatches that are lost if this learner is lost."""
        return self.trained[self.safe :]

    def begin(self, *, keep: bool = False) -> None:
        """Begin an interval with no minibatch, after a merge, or ``keep`` those that are not safe yet."""
        dropped = self.safe if keep else len(self.trained)
        self.trained = self.trained[dropped:]
        self._given = {source: max(0, count - dropped) for source, count in self._given.items()} if keep else {}
        self._sent = deque(max(0, count - dropped) for count in self._sent if keep)
        self.safe, self._heard, self.in_step = 0, max(0, self._heard - dropped), False

    def open(self) -> None:
        """Begin a step, or `Strategy.before_barrier`: operations carry our weights from now on."""
        self.in_step = True

    def close(self) -> None:
        """End the step: it can no longer be undone."""
        self.in_step = False
        if self._heard > self.safe:
            self.runtime.mark_safe(self.trained[self.safe : self._heard])
            self.safe = self._heard

    def abort(self) -> None:
        """End a step that is undone: its messages make nothing safe."""
        self.in_step = False

    def restore(self, trained: list[int]) -> None:
        """Continue with the minibatches of a checkpoint that were not safe."""
        self.trained[:] = trained

    def finished(self, number: int) -> None:
        """Add a finished minibatch."""
        self.trained.append(number)

    def heard(self, count: int) -> None:
        """Note that others have the weights of so many finished minibatches of ours."""
        self._heard = max(self._heard, count)

    def replied(self, source: int) -> None:
        """Note a reply to a peer's request, which carries our weights.

        On processes a thread of its own calls this; the runtime is told after our next step.
        """
        self.heard(self._given.get((None, source), 0))
        self._given[None, source] = len(self.trained)

    def exchanging(self, group: object, to: int, source: int, size: int) -> Callable[[], None]:
        """Note that an exchange begins; return what to call when it has ended."""
        count, known = len(self.trained), self._given.get((group, source), 0)
        self._given[group, to] = count
        if not self._sent or self._sent[-1] < count:
            self._sent.append(count)
        old = self._sent[-1 - size] if len(self._sent) > size else 0
        while len(self._sent) > size + 1:
            self._sent.popleft()
        return lambda: self.heard(max(known, old))

    def watch(self, comm: Communicator) -> Communicator:
        """Return ``comm``, with its operations tracked if learners can be lost."""
        return _TrackedCommunicator(comm, self) if self.runtime.elastic and comm.size > 1 else comm

    def serving(self, strategy: Strategy) -> Strategy:
        """Return ``strategy`` as requests see it, with its replies tracked if learners can be lost."""
        return _TrackedReplies(strategy, self) if self.runtime.elastic else strategy


class _TrackedCommunicator(WrappedCommunicator):
    """A communicator whose operations are tracked, except in groups of one."""

    def __init__(self, comm: Communicator, tracker: MinibatchTracker) -> None:
        super().__init__(comm, self._note)
        self._tracker = tracker

    def _note(self, awaited: Awaitable[T]) -> Awaitable[T]:
        tracker = self._tracker
        if not tracker.in_step:
            return awaited
        count = len(tracker.trained)
        return _TrackedAwait(awaited, lambda: tracker.heard(count))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to`` and return its reply."""
        awaited = self._comm.request(x, to)
        return self._note(awaited) if self._tracker.requests_are_kept else awaited

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send to one rank, receive from another."""
        awaited, tracker = self._comm.exchange(x, to, source), self._tracker
        return _TrackedAwait(awaited, tracker.exchanging(self, to, source, self.size)) if tracker.in_step else awaited

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Return the communicator of our group."""
        made = self._comm.split(groups)
        return _TrackedCommunicator(made, self._tracker) if made.size > 1 else made


class _TrackedAwait(Generic[T]):
    def __init__(self, awaited: Awaitable[T], note: Callable[[], None]) -> None:
        self._awaited, self._note = awaited, note

    def __await__(self) -> Generator[Any, Any, T]:
        result = yield from self._awaited.__await__()
        self._note()
        return result


class _TrackedReplies(Strategy):
    def __init__(self, strategy: Strategy, tracker: MinibatchTracker) -> None:
        self._strategy, self._tracker = strategy, tracker

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        reply = self._strategy.serve(learner, theirs, source)
        self._tracker.replied(source)
        return reply
