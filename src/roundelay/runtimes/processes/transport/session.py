"""What all communicators of one membership epoch share, and the verbs that go from one learner to another."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import CommunicationError, LearnerLost, Mismatch
from roundelay.learner import Learner
from roundelay.runs.record import Kind as SpanKind
from roundelay.runtimes.processes.transport.messages import Kind, Label, Message, Transport
from roundelay.runtimes.strategy_lock import Blocking, StrategyLock
from roundelay.strategy import Strategy

__all__ = ["PointToPoint", "Session", "TimeRecorder"]

T = TypeVar("T")


class TimeRecorder(Protocol):
    """Where a session writes down how time was spent; a `ProcessRuntime` is one."""

    def now(self) -> float:
        """Return the time."""

    def span(self, kind: SpanKind, begin: float) -> None:
        """Write that the time since ``begin`` went so."""

    def sent(self, nbytes: int) -> None:
        """Add to what was sent."""


class Session:
    """One membership epoch as this process sees it: the post, the baton, the strategy that answers requests."""

    def __init__(self, transport: Transport, strategy_lock: StrategyLock, recorder: TimeRecorder) -> None:
        self.transport, self.strategy_lock, self.recorder = transport, strategy_lock, recorder
        self.groups: dict[int, tuple[int, ...]] = {}  # by key: world ranks, in the group's order
        self.learner: Learner | None = None
        self.strategy: Strategy | None = None
        self.end_reason: str | None = None
        self.failure: BaseException | None = None
        self.closers: list[Callable[[], None]] = []
        self.threads: list[threading.Thread] = []

    def add_group(self, members: Sequence[int], path: str) -> int:
        """Put down a group; return its key."""
        key = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=7).digest(), "little")
        self.groups[key] = tuple(members)
        return key

    def abort(self, reason: str) -> None:
        """End this epoch: all who wait raise `LearnerLost`."""
        if self.end_reason is None:
            self.end_reason = reason
            self.transport.abort(reason)

    def close(self) -> None:
        """Give back all that this epoch has used."""
        for close in self.closers:
            close()
        self.transport.close()

    def fail(self, error: BaseException) -> None:
        """Have the main thread raise what has gone wrong while serving."""
        self.failure = error
        self.transport.abort(f"serving failed: {error}")

    def wait(self, check: Callable[[], T | None]) -> T:
        """Wait for something to come, without the baton, and write the time down."""
        result = check()
        if result is not None:
            return result
        begin = self.recorder.now()
        try:
            with self.strategy_lock.released():
                return self.transport.wait(check)
        except LearnerLost:
            if self.failure is not None:
                raise self.failure from None
            raise
        finally:
            self.recorder.span("wait", begin)

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Write the time inside down as communication."""
        begin = self.recorder.now()
        try:
            yield
        finally:
            self.recorder.span("communicate", begin)

    def serve(self, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        """Have the strategy answer; by whoever holds the baton."""
        if self.strategy is None or self.learner is None:
            raise CommunicationError("a request to oneself came before the strategy was set up")
        begin = self.recorder.now()
        try:
            return self.strategy.serve(self.learner, theirs.to(self.learner.weights.device), source)
        finally:
            self.recorder.span("serve", begin)


class PointToPoint:
    """The verbs between two learners, over any post; collectives are the subclasses'."""

    def __init__(self, session: Session, members: Sequence[int], path: str = "world") -> None:
        self.session, self.members, self.path = session, tuple(members), path
        self.key = session.add_group(self.members, path)
        self.rank, self.size = self.members.index(session.transport.rank), len(self.members)
        self._splits = 0
        self._requests = 0
        self._lent: dict[Kind, list[Message]] = {Kind.EXCHANGE: [], Kind.REPLY: []}

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send ``x`` to one rank and receive the tensor that another sends us by the same verb."""
        self._reclaim_results(Kind.EXCHANGE)
        label = Label(Kind.EXCHANGE, self.key, 0)
        if to == self.rank and source == self.rank:
            mine = x.clone()
            return Blocking(lambda: mine)
        if self.rank in (to, source):
            raise Mismatch(f"rank {self.rank} exchanges with itself on one side only: to {to}, of {source}")
        self._send(to, label, x)
        return Blocking(lambda: self._receive(source, label, x))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Have ``to``'s strategy `serve` our ``x``, whatever it is doing, and receive its answer."""
        self._reclaim_results(Kind.REPLY)
        if to == self.rank:
            return self._request_own(x)
        self._requests += 1
        number = self._requests
        self._send(to, Label(Kind.REQUEST, self.key, number), x)
        return Blocking(lambda: self._receive(to, Label(Kind.REPLY, self.key, number), x))

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Make the communicator of the group we are in; every rank names the same partition, in one order."""
        self._splits += 1
        for index, group in enumerate(groups):
            if self.rank in group:
                members = [self.members[rank] for rank in group]
                made = self._make(members, f"{self.path}/{self._splits}.{index}")
                self.session.transport.wake()  # a request by way of the new group may have come already
                return made
        raise Mismatch(f"split: rank {self.rank} is in none of the groups {[list(group) for group in groups]}")

    def _make(self, members: Sequence[int], path: str) -> Communicator:
        raise NotImplementedError

    def _request_own(self, x: Tensor) -> Awaitable[Tensor]:
        answers: list[Tensor] = []
        answer = self.session.serve(x.clone(), self.rank)

        def given(tensor: Tensor) -> None:
            answers.append(tensor.clone())
            self.session.transport.wake()

        if isinstance(answer, DeferredReply):
            answer.on_send(given)
        else:
            given(answer)
        return Blocking(lambda: self.session.wait(lambda: answers[0] if answers else None))

    def _send(self, to: int, label: Label, x: Tensor) -> None:
        with self.session.communicating():
            self.session.recorder.sent(self.session.transport.send(self.members[to], label, x))

    def _receive(self, source: int, label: Label, like: Tensor) -> Tensor:
        post, sender = self.session.transport, self.members[source]
        message = self.session.wait(lambda: post.receive(sender, label))
        self._lent[label.kind].append(message)
        return message.tensor if message.tensor.device == like.device else message.tensor.to(like.device)

    def _reclaim_results(self, kind: Kind) -> None:
        """Give back what was lent to the strategy: it has been read by now."""
        lent = self._lent[kind]
        for message in lent:
            message.release()
        lent.clear()


def serve_next(session: Session, message: Message) -> None:
    """Answer one request; by whoever holds the baton."""
    members = session.groups[message.label.group]
    label = Label(Kind.REPLY, message.label.group, message.label.number)
    answer = session.serve(message.tensor, members.index(message.source))

    def send(tensor: Tensor) -> None:
        if session.end_reason is None:
            session.recorder.sent(session.transport.send(message.source, label, tensor))

    if isinstance(answer, DeferredReply):
        answer.on_send(send)
    else:
        send(answer)
    message.release()
