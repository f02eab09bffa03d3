"""Messages between learners over torch.distributed: a gloo group in which every peer has a thread of its own.

A receive in gloo can be neither polled nor cancelled, so each peer is listened to by a thread that does nothing else;
it ends when the peer says farewell, when the peer is gone, or when we close the group's connections.  Sending waits
until the receiver listens, so each peer that is written to has a second thread and a queue.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from roundelay.errors import LearnerLost
from roundelay.runtimes.processes.transport.key_value_store import torch_message
from roundelay.runtimes.processes.transport.messages import HEADER, MAGIC, Kind, Label, Layout, Message, raw_bytes

__all__ = ["AT_ONCE", "FOREVER", "UNUSED_TAG", "GlooTransport", "interrupt"]

T = TypeVar("T")
FOREVER = datetime.timedelta(days=365)
AT_ONCE = datetime.timedelta(milliseconds=1)
HEADERS, BODIES, UNUSED_TAG = 1, 2, 77  # tags
PACKET_BYTES = 2048  # a header, and the body behind it where that is short: one message instead of two
CLOSE_SECONDS = 2.0  # how long we wait for the others' farewell
KEPT_BUFFERS = 4  # of one size; the rest goes back to the system
CLOSE = Label(Kind.CLOSE, 0, 0)


class GlooGroup(Protocol):
    """What we use of a gloo process group."""

    def send(self, tensors: list[Tensor], to: int, tag: int, /) -> Any: ...
    def recv(self, tensors: list[Tensor], source: int, tag: int, /) -> Any: ...


def interrupt(group: GlooGroup, rank: int, size: int) -> None:
    """Close all connections of a gloo group: whoever waits in it, here or elsewhere, raises.

    This is the one way to interrupt gloo: a receive that times out closes every connection of its group.  One from a
    peer that is gone already raises without doing so, hence all peers in turn.
    """
    for peer in range(size):
        if peer != rank:
            with contextlib.suppress(RuntimeError):  # which is what a receive that times out raises
                group.recv([torch.zeros(1)], peer, UNUSED_TAG).wait(AT_ONCE)


class GlooTransport:
    """A `Transport` over a gloo group, which is connected in the background."""

    def __init__(self, rank: int, size: int, connect: Callable[[], GlooGroup], lost: Callable[[str], None]) -> None:
        self.rank, self.size = rank, size
        self._connect, self._lost = connect, lost
        self._group: GlooGroup | None = None
        self._outboxes: dict[int, queue.SimpleQueue[_Outgoing]] = {}
        self._inbox: dict[tuple[int, Label], deque[Message]] = defaultdict(deque)
        self._requests: deque[Message] = deque()
        self._changed = threading.Condition()
        self._end_reason: str | None = None
        self._closed = False
        self._buffers = _Buffers()
        self._threads: list[threading.Thread] = []
        self._connected = threading.Event()
        if size > 1:
            threading.Thread(target=self._begin, name="connect", daemon=True).start()

    # -- the post -----------------------------------------------------------------------------------------------

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Copy ``x``, to be sent in the background."""
        if self._end_reason is not None:
            raise LearnerLost(self._end_reason)
        letter = _Outgoing(label, x.detach().cpu().contiguous(), self._buffers)
        self._outbox(to).put(letter)
        return letter.nbytes

    def receive(self, source: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if it has come."""
        with self._changed:
            waiting = self._inbox.get((source, label))
            if not waiting:
                return None
            message = waiting.popleft()
            if not waiting:
                del self._inbox[source, label]
            return message

    def next_request(self) -> Message | None:
        """Return the oldest request, if one has come."""
        return self._requests.popleft() if self._requests else None

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        """Block until ``check`` returns something."""
        with self._changed:
            while True:
                result = check()
                if result is not None:
                    return result
                if self._end_reason is not None:
                    raise LearnerLost(self._end_reason)
                self._changed.wait()

    def wake(self) -> None:
        """Have all who wait check again."""
        with self._changed:
            self._changed.notify_all()

    def abort(self, reason: str) -> None:
        """Have all who wait raise."""
        with self._changed:
            self._end_reason = self._end_reason or reason
            self._changed.notify_all()

    def close(self) -> None:
        """Send what is left to send and part from all peers; where one is lost, just close the connections."""
        with self._changed:
            self._closed = True
        if self._group is None:  # never connected, or not yet: whoever connects will see that it is too late
            return
        if self._end_reason is None:
            for peer in range(self.size):
                if peer != self.rank:
                    self._outbox(peer).put(_Outgoing(CLOSE, torch.zeros(0, dtype=torch.uint8), self._buffers))
            self._join(CLOSE_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            interrupt(self._group, self.rank, self.size)
            for outbox in self._outboxes.values():
                outbox.put(_Outgoing(CLOSE, torch.zeros(0, dtype=torch.uint8), self._buffers))
            self._join(CLOSE_SECONDS)
        self._group = None

    def _join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    # -- threads ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Connect to everybody, which gloo lets nobody interrupt, and listen."""
        try:
            group = self._connect()
        except RuntimeError as error:  # torch has no narrower one
            self._report(f"connecting failed: {torch_message(error)}")
            return
        with self._changed:
            if self._closed or self._end_reason is not None:
                return
            self._group = group
            for peer in range(self.size):
                if peer != self.rank:
                    self._start(self._listen, peer, f"from {peer}")
        self._connected.set()

    def _outbox(self, to: int) -> queue.SimpleQueue[_Outgoing]:
        with self._changed:
            if to not in self._outboxes:
                self._outboxes[to] = queue.SimpleQueue()
                self._start(self._write, to, f"to {to}")
            return self._outboxes[to]

    def _start(self, target: Callable[[int], None], peer: int, name: str) -> None:
        thread = threading.Thread(target=target, args=(peer,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _write(self, to: int) -> None:
        """Send what is put into the outbox, until the farewell."""
        outbox = self._outboxes[to]
        while not self._connected.wait(0.1):
            if self._closed or self._end_reason is not None:
                return
        group = self._group
        while group is not None:
            letter = outbox.get()
            try:
                works = [group.send([letter.packet], to, HEADERS)]
                if letter.body is not None:
                    works.append(group.send([letter.body], to, BODIES))
                for work in works:
                    work.wait(FOREVER)
            except RuntimeError as error:
                self._report(f"rank {to} is gone: {torch_message(error)}")
                return
            if letter.label == CLOSE:
                return
            letter.free()

    def _listen(self, source: int) -> None:
        """Receive what a peer sends, until it says farewell."""
        group = self._group
        assert group is not None
        envelope = torch.empty(PACKET_BYTES, dtype=torch.uint8)
        try:
            while True:
                group.recv([envelope], source, HEADERS).wait(FOREVER)
                label, layout = _Outgoing.read(envelope)
                if label == CLOSE:
                    return
                buffer = self._buffers.take(layout.nbytes)
                if layout.nbytes <= PACKET_BYTES - HEADER.size:
                    buffer.copy_(envelope[HEADER.size : HEADER.size + layout.nbytes])
                else:
                    group.recv([buffer], source, BODIES).wait(FOREVER)
                self._deliver(source, label, buffer, layout)
        except (RuntimeError, ValueError, IndexError) as error:
            self._report(f"rank {source} is gone: {torch_message(error)}")

    def _deliver(self, source: int, label: Label, buffer: Tensor, layout: Layout) -> None:
        """Put a whole message where it will be found."""
        tensor = buffer.view(layout.dtype).view(layout.shape)
        message = Message(source, label, tensor, lambda: self._buffers.give(buffer))
        with self._changed:
            if label.kind is Kind.REQUEST:
                self._requests.append(message)
            else:
                self._inbox[source, label].append(message)
            self._changed.notify_all()

    def _report(self, reason: str) -> None:
        if not self._closed and self._end_reason is None:
            self._lost(reason)


class _Outgoing:
    """A message to be sent: its header in an envelope, and the body behind it or, where that is long, beside it."""

    def __init__(self, label: Label, x: Tensor, buffers: _Buffers) -> None:
        layout = Layout.of(x)
        self.label, self.nbytes, self._buffers = label, HEADER.size + layout.nbytes, buffers
        self.packet = buffers.take(PACKET_BYTES)
        self.body: Tensor | None = None
        header = HEADER.pack(MAGIC, *label, *layout.encode())
        self.packet[: HEADER.size] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        if self.nbytes <= PACKET_BYTES:
            if layout.nbytes:
                self.packet[HEADER.size : self.nbytes] = raw_bytes(x)
        else:
            self.body = buffers.take(layout.nbytes).copy_(raw_bytes(x))

    def free(self) -> None:
        """Give the memory back, once it has been sent."""
        for buffer in (self.packet, self.body):
            if buffer is not None:
                self._buffers.give(buffer)

    @staticmethod
    def read(packet: Tensor) -> tuple[Label, Layout]:
        """Read the header of an envelope."""
        magic, kind, group, number, *layout = HEADER.unpack(packet[: HEADER.size].numpy().tobytes())
        if magic != MAGIC:
            raise ValueError("what it sent is no message of ours")
        return Label(Kind(kind), group, number), Layout.decode(tuple(layout))


class _Buffers:
    """Memory for messages, kept by size: fresh pages cost as much as the copy."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Tensor]] = defaultdict(list)

    def take(self, nbytes: int) -> Tensor:
        kept = self._kept[nbytes]
        try:
            return kept.pop()
        except IndexError:
            return torch.empty(nbytes, dtype=torch.uint8)

    def give(self, buffer: Tensor) -> None:
        kept = self._kept[buffer.numel()]
        if len(kept) < KEPT_BUFFERS:
            kept.append(buffer)
