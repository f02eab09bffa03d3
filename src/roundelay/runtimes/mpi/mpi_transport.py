"""A transport over MPI, and what makes progress there: messages, and operations that take several steps.

MPI makes progress only inside its calls, and its own waiting spins.  So nothing here waits inside MPI: a waiting thread
polls, sleeps in between, and serves requests; while the gradient is computed, another thread does the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from mpi4py import MPI
from torch import Tensor

from roundelay.errors import CommunicationError, LearnerLost
from roundelay.runtimes.blocking import StrategyLock
from roundelay.runtimes.messages import HEADER, MAGIC, Blanks, Buffers, Bytes, Inbox, Kind, Label, Layout, Message
from roundelay.runtimes.session import Session, serve_message
from roundelay.runtimes.wall_clock import TimeRecorder

T = TypeVar("T")

HEADER_BYTES = 128  # two cache lines, so that the tensor behind the header is aligned for any dtype
SPIN_SECONDS = 50e-6
SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 1e-3
SLOWEST_BYTES_PER_SECOND = 200e6  # if data moves slower than this, waiting sleeps instead of spinning


class Operation(Generic[T]):
    """Something under way that takes several steps; awaiting it blocks until it is done."""

    size = 0
    """Number of bytes that it moves."""

    def __init__(self, transport: MpiTransport) -> None:
        self.transport = transport
        self.done = False
        self.error: BaseException | None = None
        self.arrived: float | None = None  # when all that it waits for had come, so that only bytes are to be moved
        self._results: list[T] = []

    def advance(self) -> bool:
        """Advance without waiting; return whether it is done.  The caller holds the transport's lock."""
        raise NotImplementedError

    def result(self) -> T:
        """Return the operation's result when it is done.  The caller holds the strategy lock."""
        raise NotImplementedError

    def poll(self) -> bool:
        """Advance; keep an error for the await."""
        if not self.done:
            try:
                self.done = self.advance()
            except MPI.Exception as error:
                self.error, self.done = CommunicationError(f"MPI: {error.Get_error_string()}"), True
            except CommunicationError as error:
                self.error, self.done = error, True
        return self.done

    def __await__(self) -> Generator[None, None, T]:
        yield from ()  # it never suspends: awaiting blocks
        if not self.done:
            self.transport.session.wait(self._check)
        if self.error is not None:
            raise self.error
        if not self._results:
            self._results.append(self.result())
        return self._results[0]

    def _check(self) -> bool | None:
        self.transport.note_arrival(self.arrived, self.size)
        return self.done or None


@dataclass(slots=True)
class _Incoming:
    """A message whose beginning has arrived."""

    source: int
    kind: Kind
    size: int
    buffer: Bytes
    request: MPI.Request


class MpiTransport:
    """All messages and operations under way in this process.

    ``lock`` guards MPI and what is under way, and is held for moments only; the strategy lock guards the learner.
    No thread acquires the strategy lock while it holds ``lock``.
    """

    def __init__(self, world: MPI.Intracomm, recorder: TimeRecorder) -> None:
        if world.size > 1 and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise CommunicationError(
                "this MPI library was started without support for threads, so requests cannot be served"
            )
        self.rank, self.size, self.world, self.now = world.rank, world.size, world, recorder.now
        self.service = world.Dup()  # messages and barriers; apart from collectives
        self.lock, self.buffers = threading.RLock(), Buffers()
        self._blanks: Blanks[Bytes] = Blanks()
        self.session = Session(self, StrategyLock(), recorder)
        self.session.strategy_lock.acquire()  # by the thread that makes the transport
        self.arrived: float | None = None
        self._arriving_bytes = 0
        self._pending: list[Operation[Any]] = []
        self._outgoing: list[tuple[MPI.Request, Bytes]] = []
        self._incoming: list[_Incoming] = []
        self._inbox, self._status = Inbox(), MPI.Status()
        self._unanswered = 0  # exchanges and requests that we have sent, less exchanges and replies that have arrived
        self._end_reason: str | None = None
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None

    # -- messages -----------------------------------------------------------------------------------------------

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Copy ``x``, unless it is in memory of ours, and send that."""
        layout = Layout.of(x)
        size = HEADER_BYTES + layout.nbytes
        with self.lock:
            buffer = self._blanks.take(x)
            if buffer is None:
                buffer = self.buffers.take(size)
                layout.view(buffer, HEADER_BYTES).copy_(x.detach().reshape(layout.shape))
            HEADER.pack_into(buffer.data, 0, MAGIC, *label, *layout.encode())
            self._unanswered += label.kind is not Kind.REPLY
            request = self.service.Isend([buffer, size, MPI.BYTE], to, label.kind)
            if request.Test():
                self.buffers.give(buffer)
            else:
                self._outgoing.append((request, buffer))
        return layout.nbytes

    def blank(self, like: Tensor) -> Tensor:
        """Return the part of a buffer behind the header."""
        if like.device.type != "cpu":  # not run by any test: there is no GPU
            return torch.empty_like(like)
        layout = Layout.of(like)
        buffer = self.buffers.take(HEADER_BYTES + layout.nbytes)
        return self._blanks.give(layout.view(buffer, HEADER_BYTES), buffer)

    def receive(self, source: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if one has arrived."""
        with self.lock:
            message = self._inbox.take(source, label)
            if message is None and self.arrived is None:
                for each in self._incoming:
                    if each.source == source and each.kind is label.kind:
                        self.note_arrival(self.now(), each.size)
        return message

    def next_request(self) -> Message | None:
        """Return the oldest request of any sender, if one has arrived."""
        with self.lock:
            return self._inbox.take_request()

    def note_arrival(self, when: float | None, nbytes: int = 0) -> None:
        """Note when the beginning of what we wait for arrived, if it has, and its size."""
        self.arrived, self._arriving_bytes = when, nbytes

    # -- progress -----------------------------------------------------------------------------------------------

    def begin(self, operation: Operation[T]) -> Operation[T]:
        """Add a started operation to those under way."""
        with self.lock:
            if not operation.poll():
                self._pending.append(operation)
        return operation

    @property
    def is_busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._pending or self._outgoing or self._unanswered > 0)

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        """Poll until ``check`` returns something; serve requests meanwhile."""
        self.note_arrival(None)
        pause = _Pause()
        while True:
            self.poll()
            result = check()
            if result is not None:
                return result
            if self._end_reason is not None:
                raise LearnerLost(self._end_reason)
            while self._serve_one():
                pause = _Pause()
            pause.between(self._arriving_bytes if self.arrived is not None else None)

    def finish(self, request: MPI.Request, timeout_seconds: float | None = None) -> bool:
        """Poll an MPI request with the strategy lock held; return whether it is done in time."""
        pause, begin = _Pause(), time.monotonic()
        while timeout_seconds is None or time.monotonic() < begin + timeout_seconds:
            with self.lock:
                if request.Test():
                    return True
            pause.between(None)
        return False

    def poll(self) -> None:
        """Advance everything that is under way."""
        with self.lock:
            self._pending = [operation for operation in self._pending if not operation.poll()]
            try:
                self._poll_messages()
            except MPI.Exception as error:
                raise CommunicationError(f"MPI: {error.Get_error_string()}") from error

    def _poll_messages(self) -> None:
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            for request, buffer in outgoing:
                if request.Test():
                    self.buffers.give(buffer)
                else:
                    self._outgoing.append((request, buffer))
        for _ in range(2):  # MPICH makes progress after it has looked: the second call sees what the first received
            while message := self.service.Improbe(status=self._status):  # codespell:ignore improbe
                self._incoming.append(self._begin_to_receive(message))
        if self._incoming:
            incoming, self._incoming = self._incoming, []
            late: set[tuple[int, Kind]] = set()  # messages of one sender and kind stay in their order
            for each in incoming:
                if (each.source, each.kind) not in late and each.request.Test():
                    self._inbox.put(self._read(each))
                    self._unanswered -= each.kind is not Kind.REQUEST
                else:
                    late.add((each.source, each.kind))
                    self._incoming.append(each)

    def _begin_to_receive(self, message: MPI.Message) -> _Incoming:
        status = self._status
        size = status.Get_count(MPI.BYTE)
        buffer = self.buffers.take(size)
        request = message.Irecv([buffer, size, MPI.BYTE])
        return _Incoming(status.Get_source(), Kind(status.Get_tag()), size, buffer, request)

    def _read(self, incoming: _Incoming) -> Message:
        buffer = incoming.buffer
        _, kind, group, number, *numbers = HEADER.unpack_from(buffer.data)
        tensor = Layout.decode(tuple(numbers)).view(buffer, HEADER_BYTES)
        return Message(incoming.source, Label(Kind(kind), group, number), tensor, partial(self.buffers.give, buffer))

    def wake(self) -> None:
        """Do nothing: waiting threads poll."""

    def abort(self, reason: str) -> None:
        """Let a waiting thread raise."""
        self._end_reason = self._end_reason or reason

    def close(self) -> None:
        """End the thread."""
        self.abort("the session was closed")
        self._awake.set()
        if self._thread is not None:
            with self.session.strategy_lock.released():
                self._thread.join()

    # -- serving ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def computing(self, *, busy: bool) -> Iterator[None]:
        """Release the strategy lock to compute; a thread serves and moves messages meanwhile, if there are any.

        ``busy``: operations will be started during the computation.
        """
        session = self.session
        wanted = self.size > 1 and (busy or self.is_busy or session.strategy is not None)
        if wanted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="serve", daemon=True)
            self._thread.start()
        with session.strategy_lock.released():
            if wanted:
                self._awake.set()
            try:
                yield
            finally:
                self._awake.clear()
        if session.failure is not None:
            raise session.failure

    def _run(self) -> None:
        pause = _Pause()
        while self._awake.wait() and self._end_reason is None:
            try:
                self.poll()
                if self._serve_one():
                    pause = _Pause()
                else:
                    pause.between(None)
            except BaseException as error:  # raised again by the main thread
                self.session.fail(error)

    def _serve_one(self) -> bool:
        """Serve the oldest request that has arrived; return whether there was one."""
        if not self._inbox.has_requests:
            return False
        with self.session.strategy_lock.acquired():
            message = self.next_request() if self.session.strategy is not None else None
            if message is not None:
                serve_message(self.session, message)
        return message is not None


class _Pause:
    """Yield at first, then sleep longer and longer; while bytes that are waited for move, only yield."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._sleep = SHORTEST_SLEEP
        self._until: float | None = None

    def between(self, arriving_bytes: int | None) -> None:
        """Pause between two polls."""
        now = time.perf_counter()
        if arriving_bytes is not None and self._until is None:
            self._until = now + SPIN_SECONDS + arriving_bytes / SLOWEST_BYTES_PER_SECOND
            self._sleep = SHORTEST_SLEEP
        if now < (self._until or 0.0) or now < self._begin + SPIN_SECONDS:
            os.sched_yield()
            return
        time.sleep(self._sleep)
        self._sleep = min(1.5 * self._sleep, LONGEST_SLEEP)
