"""Messages between learners over sockets of our own.

Gloo could carry them, but a receive in gloo can be neither polled nor cancelled, and one from any source is woken by
nothing but a message.  Here one thread reads and writes for all peers, and whoever waits can be told to stop.
"""

from __future__ import annotations

import errno
import itertools
import selectors
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from roundelay.errors import CommunicationError, LearnerLost
from roundelay.runtimes.messages import HEADER, Kind, Label, Layout, Message, raw_bytes

__all__ = ["Wires"]

T = TypeVar("T")
MAGIC = b"RDLY"
CONNECT_SECONDS, CONNECT_ATTEMPTS = 1.0, 20  # in between we look whether the epoch is over
KEPT_BUFFERS = 4  # of one size; the rest goes back to the system


class Wires:
    """A `Post` over TCP: a connection for each direction in use, made when it is first written to."""

    def __init__(self, address: str, lost: Callable[[int], None]) -> None:
        self._listener = socket.create_server((address, 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.rank, self.size = 0, 1
        self._lost = lost
        self._peers: list[tuple[str, int]] = []
        self._token = b""
        self._outgoing: dict[int, _Outgoing] = {}
        self._inbox: dict[tuple[int, Label], deque[Message]] = defaultdict(deque)
        self._requests: deque[Message] = deque()
        self._news = threading.Condition()
        self._why: str | None = None
        self._closed = False
        self._buffers = _Buffers()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="wires", daemon=True)

    def begin(self, rank: int, peers: Sequence[tuple[str, int]], token: bytes) -> None:
        """Start, now that all addresses are known; ``token`` tells this epoch's connections from all others."""
        self.rank, self.size, self._peers = rank, len(peers), [(host, port) for host, port in peers]
        self._token = token[:32].ljust(32, b"\0")
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._drain_wake)
        self._thread.start()

    # -- the post -----------------------------------------------------------------------------------------------

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Send ``x``: as much as the socket takes at once, the rest in the background."""
        x = x.detach().cpu().contiguous()
        layout = Layout.of(x)
        header = HEADER.pack(MAGIC, *label, *layout.encode())
        wire = self._outgoing.get(to) or self._connect(to)
        try:
            all_sent = wire.send(header, raw_bytes(x).numpy().data)
        except OSError as error:
            self._lost(to)
            raise LearnerLost(f"rank {to} is gone: {error.strerror}") from error
        if not all_sent:
            self._wake()
        return HEADER.size + layout.nbytes

    def receive(self, of: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if it has come."""
        with self._news:
            waiting = self._inbox.get((of, label))
            if not waiting:
                return None
            message = waiting.popleft()
            if not waiting:
                del self._inbox[of, label]
            return message

    def next_request(self) -> Message | None:
        """Return the oldest request, if one has come."""
        return self._requests.popleft() if self._requests else None

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        """Block until ``check`` returns something."""
        with self._news:
            while True:
                result = check()
                if result is not None:
                    return result
                if self._why is not None:
                    raise LearnerLost(self._why)
                self._news.wait()

    def poke(self) -> None:
        """Have all who wait check again."""
        with self._news:
            self._news.notify_all()

    def abort(self, why: str) -> None:
        """Have all who wait raise."""
        with self._news:
            self._why = self._why or why
            self._news.notify_all()

    def close(self) -> None:
        """Send what is left to send, and close everything."""
        self._closed = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        for wire in self._outgoing.values():
            wire.socket.close()
        for held in (self._listener, self._wake_in, self._wake_out):
            held.close()

    # -- its thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed or any(wire.queue for wire in self._outgoing.values() if self._why is None):
            for wire in list(self._outgoing.values()):
                self._watch(wire)
            for key, _ in self._selector.select():
                key.data()
        for key in list((self._selector.get_map() or {}).values()):
            if isinstance(key.data, _Incoming):
                key.data.socket.close()
        self._selector.close()

    def _watch(self, wire: _Outgoing) -> None:
        wanted = bool(wire.queue)
        if wanted != wire.watched:
            wire.watched = wanted
            if wanted:
                self._selector.register(wire.socket, selectors.EVENT_WRITE, lambda: self._flush(wire))
            else:
                self._selector.unregister(wire.socket)

    def _flush(self, wire: _Outgoing) -> None:
        try:
            wire.flush()
        except OSError:
            wire.queue.clear()
            self._report(wire.to)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, _Incoming(self, connection))

    def drop(self, connection: socket.socket, of: int | None) -> None:
        """Forget a connection that has ended."""
        self._selector.unregister(connection)
        connection.close()
        if of is not None:
            self._report(of)

    def deliver(self, of: int, label: Label, buffer: Tensor, layout: Layout) -> None:
        """Put a whole message where it will be found."""
        tensor = buffer[: layout.nbytes].view(layout.dtype).view(layout.shape)
        message = Message(of, label, tensor, lambda: self._buffers.give(buffer))
        with self._news:
            if label.kind is Kind.REQUEST:
                self._requests.append(message)
            else:
                self._inbox[of, label].append(message)
            self._news.notify_all()

    def greet(self, hello: bytes) -> int | None:
        """Return the rank of whoever says ``hello``; ``None``: not one of us."""
        rank = int.from_bytes(hello[32:], "little")
        return rank if hello[:32] == self._token and rank < self.size else None

    def buffer(self, nbytes: int) -> Tensor:
        """Return memory for a message."""
        return self._buffers.take(nbytes)

    def _report(self, rank: int) -> None:
        if not self._closed and self._why is None:
            self._lost(rank)

    def _connect(self, to: int) -> _Outgoing:
        for attempt in itertools.count():
            if self._why is not None:
                raise LearnerLost(self._why)
            try:
                connection = socket.create_connection(self._peers[to], timeout=CONNECT_SECONDS)
                connection.sendall(self._token + self.rank.to_bytes(4, "little"))
                break
            except OSError as error:
                if isinstance(error, TimeoutError) and attempt < CONNECT_ATTEMPTS:
                    continue
                self._lost(to)
                raise LearnerLost(f"rank {to} cannot be reached: {error.strerror or error}") from error
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outgoing[to] = wire = _Outgoing(connection, to)
        return wire

    def _wake(self) -> None:
        try:
            self._wake_out.send(b"\0")
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EBADF):
                raise CommunicationError(f"the thread that reads messages cannot be woken: {error}") from error

    def _drain_wake(self) -> None:
        self._wake_in.recv(4096)


class _Outgoing:
    """A connection that we write to."""

    def __init__(self, connection: socket.socket, to: int) -> None:
        self.socket, self.to, self.watched = connection, to, False
        self.queue: deque[memoryview] = deque()
        self._lock = threading.Lock()

    def send(self, header: bytes, body: memoryview) -> bool:
        """Write now what can be written, keep a copy of the rest; return whether nothing is left."""
        with self._lock:
            sent = 0
            if not self.queue:
                try:
                    sent = self.socket.sendmsg([header, body])
                except BlockingIOError:
                    sent = 0
            if sent < len(header):
                self.queue.append(memoryview(header[sent:]))
                sent = len(header)
            if (rest := body[sent - len(header) :]).nbytes:
                self.queue.append(memoryview(bytes(rest)))
            return not self.queue

    def flush(self) -> None:
        """Write what is left, as far as the socket takes it."""
        with self._lock:
            while self.queue:
                try:
                    sent = self.socket.send(self.queue[0])
                except BlockingIOError:
                    return
                if sent < self.queue[0].nbytes:
                    self.queue[0] = self.queue[0][sent:]
                else:
                    self.queue.popleft()


class _Incoming:
    """A connection that we read from: a greeting, then messages."""

    def __init__(self, wires: Wires, connection: socket.socket) -> None:
        self.wires, self.socket = wires, connection
        self.of: int | None = None
        self.label: Label | None = None
        self.layout: Layout
        self.body: Tensor
        self.view: memoryview
        self._expect(36)

    def __call__(self) -> None:
        """Read what has come."""
        try:
            got = self.socket.recv_into(self.view)
        except BlockingIOError:
            return
        except OSError:
            got = 0
        if not got:
            self.wires.drop(self.socket, self.of)
            return
        self.view = self.view[got:]
        if not self.view.nbytes:
            self._advance()

    def _expect(self, nbytes: int) -> None:
        self.data = bytearray(nbytes)
        self.view = memoryview(self.data)

    def _advance(self) -> None:
        if self.of is None:
            self.of = self.wires.greet(bytes(self.data))
            if self.of is None:
                self.wires.drop(self.socket, None)
                return
            self._expect(HEADER.size)
        elif self.label is None:
            magic, kind, group, number, *layout = HEADER.unpack(self.data)
            if magic != MAGIC:
                self.wires.drop(self.socket, self.of)
                return
            self.label, self.layout = Label(Kind(kind), group, number), Layout.decode(tuple(layout))
            self.body = self.wires.buffer(self.layout.nbytes)
            self.view = self.body.numpy().data[: self.layout.nbytes]
            if not self.layout.nbytes:
                self._advance()
        else:
            self.wires.deliver(self.of, self.label, self.body, self.layout)
            self.label = None
            self._expect(HEADER.size)


class _Buffers:
    """Memory for messages, kept by size: fresh pages cost as much as the copy."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Tensor]] = defaultdict(list)

    def take(self, nbytes: int) -> Tensor:
        kept = self._kept.get(nbytes)
        return kept.pop() if kept else torch.empty(nbytes, dtype=torch.uint8)

    def give(self, buffer: Tensor) -> None:
        kept = self._kept[buffer.numel()]
        if len(kept) < KEPT_BUFFERS:
            kept.append(buffer)
