"""Messages between learners over a gloo group of torch.distributed.

A receive in gloo can be neither polled nor cancelled, so one thread per peer only receives; it ends when the peer
sends CLOSE, when the peer is gone, or when we close the group's connections.  A send waits for the receiver, so each
peer that we send to has a second thread, with a queue.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from roundelay.errors import LearnerLost
from roundelay.runtimes.messages import (
    HEADER,
    MAGIC,
    Blanks,
    Buffers,
    Bytes,
    Inbox,
    Kind,
    Label,
    Layout,
    Message,
    raw_bytes,
)
from roundelay.runtimes.processes.transport.key_value_store import torch_message

T = TypeVar("T")
FOREVER = datetime.timedelta(days=365)
AT_ONCE = datetime.timedelta(milliseconds=1)
HEADERS, BODIES, UNUSED_TAG = 1, 2, 77  # tags
PACKET_BYTES = 2048  # a header and, if it fits, the tensor: one message instead of two
CLOSE_SECONDS = 2.0  # how long we wait for CLOSE of the others
CLOSE = Label(Kind.CLOSE, 0, 0)


class _GlooGroup(Protocol):
    """The part of a gloo process group that is used here."""

    def send(self, tensors: list[Tensor], to: int, tag: int, /) -> Any: ...
    def recv(self, tensors: list[Tensor], source: int, tag: int, /) -> Any: ...


def interrupt(group: _GlooGroup, rank: int, size: int) -> None:
    """Close all connections of a gloo group: all threads that wait in it, here or elsewhere, raise.

    This is the only way to interrupt gloo: a receive that times out closes every connection of its group.  A receive
    from a peer that is gone raises without closing them, so all peers are tried.
    """
    for peer in range(size):
        if peer != rank:
            with contextlib.suppress(RuntimeError):  # which is what a receive that times out raises
                group.recv([torch.zeros(1)], peer, UNUSED_TAG).wait(AT_ONCE)


class GlooTransport:
    """A `Transport` over a gloo group, which connects in the background."""

    def __init__(self, rank: int, size: int, connect: Callable[[], _GlooGroup], lost: Callable[[str], None]) -> None:
        self.rank, self.size = rank, size
        self.arrived: float | None = None  # it cannot be known
        self._connect, self._lost = connect, lost
        self._group: _GlooGroup | None = None
        self._outboxes: dict[int, queue.SimpleQueue[_Outgoing]] = {}
        self._inbox = Inbox()
        self._changed = threading.Condition()
        self._end_reason: str | None = None
        self._closed = False
        self._buffers = Buffers()
        self._blanks: Blanks[Bytes] = Blanks()
        self._threads: list[threading.Thread] = []
        self._connected = threading.Event()
        if size > 1:
            threading.Thread(target=self._begin, name="connect", daemon=True).start()

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Copy ``x``, unless it is in memory of ours; a thread sends it."""
        if self._end_reason is not None:
            raise LearnerLost(self._end_reason)
        outgoing = _Outgoing(label, x.detach().cpu().contiguous(), self._buffers, self._blanks.take(x))
        self._outbox(to).put(outgoing)
        return outgoing.nbytes

    def blank(self, like: Tensor) -> Tensor:
        """Return a buffer, if the learner's memory is the processor's and a message of its own is worth it."""
        layout = Layout.of(like)
        if like.device.type != "cpu" or layout.nbytes <= PACKET_BYTES:
            return torch.empty_like(like)
        buffer = self._buffers.take(layout.nbytes)
        return self._blanks.give(layout.view(buffer), buffer)

    def receive(self, source: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if one has arrived."""
        with self._changed:
            return self._inbox.take(source, label)

    def next_request(self) -> Message | None:
        """Return the oldest request, if one has arrived."""
        with self._changed:
            return self._inbox.take_request()

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
        """Let all waiting threads check again."""
        with self._changed:
            self._changed.notify_all()

    def abort(self, reason: str) -> None:
        """Let all waiting threads raise."""
        with self._changed:
            self._end_reason = self._end_reason or reason
            self._changed.notify_all()

    def close(self) -> None:
        """Send all that is queued, then CLOSE; if a peer is lost, close the connections at once."""
        with self._changed:
            self._closed = True
        if self._group is None:  # not connected, or not yet: the connecting thread will see that we are closed
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
        """Connect to all peers, which cannot be interrupted, and start to receive."""
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
        """Send what is in the outbox, until CLOSE."""
        outbox = self._outboxes[to]
        while not self._connected.wait(0.1):
            if self._closed or self._end_reason is not None:
                return
        group = self._group
        while group is not None:
            outgoing = outbox.get()
            try:
                works = [group.send([outgoing.packet], to, HEADERS)]
                if outgoing.body is not None:
                    works.append(group.send([outgoing.body], to, BODIES))
                for work in works:
                    work.wait(FOREVER)
            except RuntimeError as error:
                self._report(f"rank {to} is gone: {torch_message(error)}")
                return
            if outgoing.label == CLOSE:
                return
            outgoing.free()

    def _listen(self, source: int) -> None:
        """Receive what a peer sends, until CLOSE."""
        group = self._group
        assert group is not None
        packet = torch.empty(PACKET_BYTES, dtype=torch.uint8)
        try:
            while True:
                group.recv([packet], source, HEADERS).wait(FOREVER)
                label, layout = _Outgoing.read(packet)
                if label == CLOSE:
                    return
                buffer = self._buffers.take(layout.nbytes)
                body = torch.from_numpy(buffer)[: layout.nbytes]
                if layout.nbytes <= PACKET_BYTES - HEADER.size:
                    body.copy_(packet[HEADER.size : HEADER.size + layout.nbytes])
                else:
                    group.recv([body], source, BODIES).wait(FOREVER)
                self._deliver(source, label, buffer, layout)
        except (RuntimeError, ValueError, IndexError) as error:
            self._report(f"rank {source} is gone: {torch_message(error)}")

    def _deliver(self, source: int, label: Label, buffer: Bytes, layout: Layout) -> None:
        """Put a complete message into the inbox."""
        message = Message(source, label, layout.view(buffer), lambda: self._buffers.give(buffer))
        with self._changed:
            self._inbox.put(message)
            self._changed.notify_all()

    def _report(self, reason: str) -> None:
        if not self._closed and self._end_reason is None:
            self._lost(reason)


class _Outgoing:
    """A message to be sent: one packet with its header and its tensor, or, if that is long, the tensor as a body."""

    def __init__(self, label: Label, x: Tensor, buffers: Buffers, memory: Bytes | None = None) -> None:
        layout = Layout.of(x)
        self.label, self.nbytes, self._buffers = label, HEADER.size + layout.nbytes, buffers
        self._taken: list[Bytes] = []
        self.packet = self._take(PACKET_BYTES)
        self.body: Tensor | None = None
        header = HEADER.pack(MAGIC, *label, *layout.encode())
        self.packet[: HEADER.size] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        if self.nbytes <= PACKET_BYTES:
            if layout.nbytes:
                self.packet[HEADER.size : self.nbytes] = raw_bytes(x)
        elif memory is not None:  # ``x`` is in it
            self._taken.append(memory)
            self.body = raw_bytes(x)
        else:
            self.body = self._take(layout.nbytes).copy_(raw_bytes(x))

    def _take(self, nbytes: int) -> Tensor:
        self._taken.append(self._buffers.take(nbytes))
        return torch.from_numpy(self._taken[-1])[:nbytes]

    def free(self) -> None:
        """Free the memory, after it was sent."""
        for buffer in self._taken:
            self._buffers.give(buffer)

    @staticmethod
    def read(packet: Tensor) -> tuple[Label, Layout]:
        """Read the header of a packet."""
        magic, kind, group, number, *layout = HEADER.unpack(packet[: HEADER.size].numpy().tobytes())
        if magic != MAGIC:
            raise ValueError("it sent something that is not a message")
        return Label(Kind(kind), group, number), Layout.decode(tuple(layout))
