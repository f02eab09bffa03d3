"""What all communicators of one generation share, and the operations between two learners."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import CommunicationError, LearnerLost, Mismatch
from roundelay.learner import Learner
from roundelay.runtimes.blocking import Blocking, StrategyLock
from roundelay.runtimes.messages import Kind, Label, Message, Transport
from roundelay.runtimes.wall_clock import TimeRecorder
from roundelay.strategy import Strategy

T = TypeVar("T")

Lent = dict[Kind, list[Callable[[], None]]]
"""What releases the results that were lent to the strategy, by the kind of their operation."""


class Session:
    """One generation in this process: its transport, the strategy lock, and the strategy that serves requests."""

    def __init__(self, transport: Transport, strategy_lock: StrategyLock, recorder: TimeRecorder) -> None:
        self.transport, self.strategy_lock, self.recorder = transport, strategy_lock, recorder
        self.groups: dict[int, tuple[int, ...]] = {}  # by key: world ranks, in the group's order
        self.learner: Learner | None = None
        self.strategy: Strategy | None = None
        self.end_reason: str | None = None
        self.failure: BaseException | None = None
        self.closers: list[Callable[[], None]] = []
        self.aborters: list[Callable[[], None]] = []
        """Called at a loss, by any thread: the main one may be waiting for a device that waits for a peer."""
        self.outgoing = HostCopies(strategy_lock)
        self.threads: list[threading.Thread] = []
        self.dropped: deque[Lent] = deque()  # results lent by communicators that are gone

    def add_group(self, members: Sequence[int], path: str) -> int:
        """Register a group; return its key."""
        key = int.from_bytes(hashlib.blake2b(path.encode(), digest_size=7).digest(), "little")
        self.groups[key] = tuple(members)
        return key

    def abort(self, reason: str) -> None:
        """End this generation: all waiting threads raise `LearnerLost`."""
        if self.end_reason is None:
            self.end_reason = reason
            self.transport.abort(reason)
            for abort in list(self.aborters):
                abort()

    def close(self) -> None:
        """Free all resources of this generation."""
        for close in self.closers:
            close()
        self.transport.close()

    def fail(self, error: BaseException) -> None:
        """Let the main thread raise an error of the serving thread."""
        self.failure = error
        self.transport.abort(f"serving failed: {error}")

    def wait(self, check: Callable[[], T | None]) -> T:
        """Wait until ``check`` returns something, without the strategy lock; record the time."""
        self.outgoing.forget()
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
            end = self.recorder.now()
            arrived = max(begin, end if self.transport.arrived is None else self.transport.arrived)
            self.recorder.span("wait", begin, arrived)
            self.recorder.span("communicate", arrived, end)

    @contextmanager
    def communicating(self) -> Iterator[None]:
        """Record the time inside as communication."""
        begin = self.recorder.now()
        try:
            yield
        finally:
            self.recorder.span("communicate", begin)

    def serve(self, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        """Call the strategy's `serve`; the caller holds the strategy lock."""
        if self.strategy is None or self.learner is None:
            raise CommunicationError("a request to oneself came before the strategy was set up")
        begin = self.recorder.now()
        try:
            return self.strategy.serve(self.learner, theirs.to(self.learner.weights.device), source)
        finally:
            self.recorder.span("serve", begin, source=source)


class HostCopies:
    """Copies of an accelerator's tensors in host memory: one, however many neighbours it is sent to.

    A copy is good as long as nobody can have changed the tensor: until it is written, or someone waits or computes.
    """

    def __init__(self, strategy_lock: StrategyLock) -> None:
        self._lock, self._copy = strategy_lock, torch.empty(0)
        self._of: tuple[object, ...] = ()
        self._buffers: dict[tuple[torch.dtype, int], Tensor] = {}

    def forget(self) -> None:
        """Take the next tensor anew."""
        self._of = ()

    def copy(self, x: Tensor) -> Tensor:
        """Return ``x`` in host memory, until the next call."""
        if x.device.type == "cpu":
            return x
        of = (x.data_ptr(), x.shape, x.stride(), x.dtype, x._version, self._lock.turns)
        if of != self._of:
            key = x.dtype, x.numel()
            if key not in self._buffers:
                self._buffers[key] = torch.empty(x.numel(), dtype=x.dtype, device="cpu", pin_memory=True)
            self._copy = self._buffers[key].view(x.shape)
            self._copy.copy_(x.detach(), non_blocking=True)
            torch.accelerator.current_stream(x.device).synchronize()
            self._of = of
        return self._copy


class PointToPoint:
    """The operations between two learners, over any transport; subclasses add the collectives.

    Received messages are lent to the strategy until the next operation of their kind begins on this communicator.
    Those of a communicator that is gone are released too: in shared memory an unreleased message blocks its sender.
    """

    def __init__(self, session: Session, members: Sequence[int], path: str = "world") -> None:
        self.session, self.members, self.path = session, tuple(members), path
        self.key = session.add_group(self.members, path)
        self.rank, self.size = self.members.index(session.transport.rank), len(self.members)
        self._splits = 0
        self._requests = 0
        self._sent: dict[int, int] = defaultdict(int)  # exchanges by peer
        self._received: dict[int, int] = defaultdict(int)
        self._lent: Lent = {Kind.EXCHANGE: [], Kind.REPLY: [], Kind.GATHER: []}
        weakref.finalize(self, session.dropped.append, self._lent).atexit = False

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to``; return the tensor that rank ``source`` sends us by the same operation."""
        self._reclaim_results(Kind.EXCHANGE)
        if to == self.rank and source == self.rank:
            mine = x.clone()
            return Blocking(lambda: mine)
        if self.rank in (to, source):
            raise Mismatch(f"rank {self.rank} exchanges with itself on one side only: to {to}, from {source}")
        self._sent[to], self._received[source] = self._sent[to] + 1, self._received[source] + 1
        self._send(to, Label(Kind.EXCHANGE, self.key, self._sent[to]), x)
        label = Label(Kind.EXCHANGE, self.key, self._received[source])
        return Blocking(lambda: self._receive(source, label, x))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to``, whatever it is doing; return the reply of its strategy's `serve`."""
        self._reclaim_results(Kind.REPLY)
        if to == self.rank:
            return self._request_own(x)
        self._requests += 1
        number = self._requests
        self._send(to, Label(Kind.REQUEST, self.key, number), x)
        return Blocking(lambda: self._receive(to, Label(Kind.REPLY, self.key, number), x))

    def blank(self, like: Tensor) -> Tensor:
        """Return memory for one message, which is sent from there."""
        return self.session.transport.blank(like)

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Return the communicator of our group; every rank gives the same partition, in the same order."""
        self._splits += 1
        for index, group in enumerate(groups):
            if self.rank in group:
                members = [self.members[rank] for rank in group]
                made = self._make(members, f"{self.path}/{self._splits}.{index}")
                self.session.transport.wake()  # a request in the new group may have come already
                return made
        raise Mismatch(f"split: rank {self.rank} is in none of the groups {[list(group) for group in groups]}")

    def _make(self, members: Sequence[int], path: str) -> Communicator:
        raise NotImplementedError

    def _request_own(self, x: Tensor) -> Awaitable[Tensor]:
        replies: list[Tensor] = []
        reply = self.session.serve(x.clone(), self.rank)

        def send(tensor: Tensor) -> None:
            replies.append(tensor.clone())
            self.session.transport.wake()

        if isinstance(reply, DeferredReply):
            reply.on_send(send)
        else:
            send(reply)
        return Blocking(lambda: self.session.wait(lambda: replies[0] if replies else None))

    def _send(self, to: int, label: Label, x: Tensor) -> None:
        with self.session.communicating():
            sent = self.session.transport.send(self.members[to], label, self.session.outgoing.copy(x))
            self.session.recorder.count_bytes(sent)

    def _receive(self, source: int, label: Label, like: Tensor) -> Tensor:
        """Wait for a message and lend its tensor, or return a copy: on an accelerator, and of a gather.

        A gather's result may be kept for long, and an unreleased message blocks its sender in shared memory.
        """
        transport, sender = self.session.transport, self.members[source]
        message = self.session.wait(lambda: transport.receive(sender, label))
        if like.device.type != "cpu" or label.kind is Kind.GATHER:
            copied = message.tensor.to(like.device, copy=True)
            message.release()
            return copied
        self._lent[label.kind].append(message.release)
        return message.tensor

    def _reclaim_results(self, kind: Kind) -> None:
        """Release the messages lent by earlier operations of this kind, and by communicators that are gone."""
        lent = [self._lent[kind]]
        while self.session.dropped:  # filled by any thread, emptied by this one
            lent += self.session.dropped.popleft().values()
        for releases in lent:
            for release in releases:
                release()
            releases.clear()


def serve_message(session: Session, message: Message) -> None:
    """Serve one request; the caller holds the strategy lock."""
    members = session.groups[message.label.group]
    label = Label(Kind.REPLY, message.label.group, message.label.number)
    reply = session.serve(message.tensor, members.index(message.source))

    def send(tensor: Tensor) -> None:
        if session.end_reason is None:
            sent = session.transport.send(message.source, label, session.outgoing.copy(tensor))
            session.recorder.count_bytes(sent)

    if isinstance(reply, DeferredReply):
        reply.on_send(send)
    else:
        send(reply)
    message.release()
