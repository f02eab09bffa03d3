"""What makes progress on MPI in one process: operations under way, and serving of requests.

MPI makes progress only inside its calls, and its own waiting spins.  So nothing here waits inside MPI: a waiting thread
polls, sleeps in between, and serves requests; while the gradient is computed, another thread does the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from mpi4py import MPI
from torch import Tensor

from roundelay.communicator import DeferredReply
from roundelay.errors import CommunicationError
from roundelay.learner import Learner
from roundelay.runtimes.blocking import StrategyLock
from roundelay.runtimes.mpi.mpi_messages import Buffers, Bytes, MessageHeader, pack, unpack
from roundelay.runtimes.wall_clock import TimeRecorder
from roundelay.strategy import Strategy

__all__ = ["REPLY", "REQUEST", "TAG_PERIOD", "Engine", "Incoming", "Operation", "Outgoing"]

T = TypeVar("T")

TAG_PERIOD = 8192  # sequence numbers repeat in tags; MPI guarantees tags up to 32767 only
REQUEST, REPLY = 0, 1  # replies take TAG_PERIOD tags from here on

SPIN_SECONDS = 50e-6
SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 1e-3
SLOWEST_BYTES_PER_SECOND = 200e6  # if data moves slower than this, waiting sleeps instead of spinning


class Operation(Generic[T]):
    """Something under way; awaiting it blocks until it is done."""

    size = 0
    """Number of bytes that it moves."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.done = False
        self.error: BaseException | None = None
        self.arrived: float | None = None  # when all that it waits for had come, so that only bytes are to be moved
        self._results: list[T] = []

    def advance(self) -> bool:
        """Advance without waiting; return whether it is done.  The caller holds the engine's lock."""
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
            self.engine.wait(self)
        if self.error is not None:
            raise self.error
        if not self._results:
            self._results.append(self.result())
        return self._results[0]


class Outgoing(Operation[None]):
    """Messages that are being sent; their buffer is reused when all are sent."""

    def __init__(self, engine: Engine, buffer: Bytes, requests: list[MPI.Request]) -> None:
        super().__init__(engine)
        self._buffer, self._requests = buffer, requests

    def advance(self) -> bool:
        """Return whether all are sent."""
        self._requests = [request for request in self._requests if not request.Test()]
        if not self._requests:
            self.engine.buffers.give(self._buffer)
        return not self._requests

    def result(self) -> None:
        """Return nothing."""


class Incoming:
    """A message of unknown size: probed for, then received."""

    def __init__(self, comm: MPI.Intracomm, source: int, tag: int, buffers: Buffers) -> None:
        self._comm, self._source, self._tag, self._buffers = comm, source, tag, buffers
        self._status = MPI.Status()
        self._request: MPI.Request | None = None
        self.buffer: Bytes
        self.size = 0

    @property
    def matched(self) -> bool:
        """Whether at least its beginning has arrived."""
        return self._request is not None

    @property
    def source(self) -> int:
        """The sender's rank."""
        return self._status.Get_source()

    def advance(self) -> bool:
        """Return whether all of it has arrived."""
        if self._request is None:
            message = self._comm.Improbe(self._source, self._tag, self._status)  # codespell:ignore improbe
            if message is None:
                return False
            self.size = self._status.Get_count(MPI.BYTE)
            self.buffer = self._buffers.take(self.size)
            self._request = message.Irecv([self.buffer, self.size, MPI.BYTE])
        return self._request.Test()


class Engine:
    """All operations under way in this process.

    ``lock`` guards MPI and the list of operations, and is held for moments only; the strategy lock guards the learner.
    No thread acquires the strategy lock while it holds ``lock``.
    """

    def __init__(self, world: MPI.Intracomm, recorder: TimeRecorder) -> None:
        if world.size > 1 and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise CommunicationError(
                "this MPI library was started without support for threads, so requests cannot be served"
            )
        self.world, self.recorder, self.now = world, recorder, recorder.now
        self.service = world.Dup()  # requests, replies, barriers; apart from the strategies' operations
        self.lock, self.strategy_lock, self.buffers = threading.RLock(), StrategyLock(), Buffers()
        self._held = contextlib.ExitStack()
        self._held.enter_context(self.strategy_lock.acquired())  # by the thread that makes the engine, until `stop`
        self.counting = False  # whether other ranks may need our progress on a window
        self._pending: list[Operation[Any]] = []
        self._serving: tuple[Learner, Strategy] | None = None
        self._incoming: deque[Incoming] = deque()  # requests, in the order of their arrival
        self._own: deque[tuple[Tensor, int, Callable[[Tensor], None]]] = deque()  # to ourselves, before `start_serving`
        self._failure: BaseException | None = None
        self._awake, self._over = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._requests = 0

    # -- operations ---------------------------------------------------------------------------------------------

    def begin(self, operation: Operation[Any]) -> None:
        """Add a started operation to the list."""
        with self.lock:
            if not operation.poll():
                self._pending.append(operation)

    def wait(self, operation: Operation[Any]) -> None:
        """Poll until it is done, without the strategy lock; serve requests meanwhile."""
        begin = self.now()
        with self.strategy_lock.released():
            self._poll_until(lambda: operation.done, operation)
        end = self.now()
        arrived = end if operation.arrived is None else min(max(operation.arrived, begin), end)
        self.recorder.span("wait", begin, arrived)
        self.recorder.span("communicate", arrived, end)

    def finish(self, request: MPI.Request, timeout_seconds: float | None = None) -> bool:
        """Poll an MPI request with the strategy lock held; return whether it is done in time."""
        pause, begin = _Pause(), time.monotonic()
        while timeout_seconds is None or time.monotonic() < begin + timeout_seconds:
            with self.lock:
                if request.Test():
                    return True
            pause.between(None)
        return False

    def drain(self) -> None:
        """Wait until all messages are sent."""
        with self.strategy_lock.released():
            self._poll_until(lambda: not self._pending, None)

    def _poll_until(self, done: Callable[[], bool], operation: Operation[Any] | None) -> None:
        pause = _Pause()
        while True:
            self._poll()
            if done():
                return
            while self._serve_one():
                pause = _Pause()
            if self._failure is not None:
                raise self._failure
            pause.between(operation)

    def _poll(self) -> None:
        with self.lock:
            self._pending = [operation for operation in self._pending if not operation.poll()]
            if self._serving is not None:
                self._receive_requests()

    # -- serving ------------------------------------------------------------------------------------------------

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Serve requests from now on."""
        self._serving = (learner, strategy)
        while self._own:
            self._serve(*self._own.popleft())

    def stop_serving(self) -> None:
        """Stop serving requests."""
        self._serving = None

    def serve_own(self, x: Tensor, rank: int, send: Callable[[Tensor], None]) -> None:
        """Serve a request to ourselves at once, or as soon as `start_serving` is called."""
        if self._serving is None:
            self._own.append((x, rank, send))
        else:
            self._serve(x, rank, send)

    def send(self, comm: MPI.Intracomm, header: MessageHeader, x: Tensor, *, to: int, tag: int) -> None:
        """Copy a tensor and send the copy."""
        with self.lock:
            buffer, size = pack(header, x, self.buffers)
            self.begin(Outgoing(self, buffer, [comm.Isend([buffer, size, MPI.BYTE], to, tag)]))

    def next_request(self) -> int:
        """Return the number of a new request of ours."""
        self._requests += 1
        return self._requests

    def _receive_requests(self) -> None:
        while True:
            request = Incoming(self.service, MPI.ANY_SOURCE, REQUEST, self.buffers)
            request.advance()
            if not request.matched:
                return
            self._incoming.append(request)

    def _serve_one(self) -> bool:
        """Serve the oldest request that has arrived; return whether there was one."""
        if not self._incoming:
            return False
        with self.strategy_lock.acquired():
            with self.lock:
                if not self._incoming or not self._incoming[0].advance():
                    return False
                request = self._incoming.popleft()
            header, theirs = unpack(request.buffer)

            def send(reply: Tensor) -> None:
                self.recorder.count_bytes(reply.nbytes)
                mine = MessageHeader.of("reply", reply, sequence=header.sequence, rank=self.world.rank)
                self.send(self.service, mine, reply, to=request.source, tag=REPLY + header.sequence % TAG_PERIOD)

            self._serve(theirs, header.rank, send)
            with self.lock:
                self.buffers.give(request.buffer)
        return True

    def _serve(self, theirs: Tensor, source: int, send: Callable[[Tensor], None]) -> None:
        assert self._serving is not None
        learner, strategy = self._serving
        begin = self.now()
        reply = strategy.serve(learner, theirs, source)
        if isinstance(reply, DeferredReply):
            reply.on_send(send)
        else:
            send(reply)
        self.recorder.span("serve", begin, self.now(), source=source)

    # -- the thread ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def computing(self, *, busy: bool) -> Iterator[None]:
        """Release the strategy lock to compute; a thread serves and moves messages meanwhile, if there are any.

        ``busy``: operations will be started during the computation.
        """
        busy = busy or self.counting or self._serving is not None or bool(self._pending)
        wanted = busy and self.world.size > 1
        if wanted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="serve", daemon=True)
            self._thread.start()
        with self.strategy_lock.released():
            if wanted:
                self._awake.set()
            try:
                yield
            finally:
                self._awake.clear()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the thread."""
        self._over = True
        self._awake.set()
        self._held.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = _Pause()
        while self._awake.wait() and not self._over:
            try:
                self._poll()
                if self._serve_one():
                    pause = _Pause()
                else:
                    pause.between(None)
            except BaseException as error:  # raised again by the main thread when it waits next
                self._failure = error
                return


class _Pause:
    """Yield at first, then sleep longer and longer; while bytes of an operation move, only yield."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._sleep = SHORTEST_SLEEP
        self._until: float | None = None

    def between(self, operation: Operation[Any] | None) -> None:
        """Pause between two polls."""
        now = time.perf_counter()
        if operation is not None and operation.arrived is not None and self._until is None:
            self._until = now + SPIN_SECONDS + operation.size / SLOWEST_BYTES_PER_SECOND
            self._sleep = SHORTEST_SLEEP
        if now < (self._until or 0.0) or now < self._begin + SPIN_SECONDS:
            os.sched_yield()
            return
        time.sleep(self._sleep)
        self._sleep = min(1.5 * self._sleep, LONGEST_SLEEP)
