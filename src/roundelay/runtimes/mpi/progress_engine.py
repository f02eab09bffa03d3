"""What keeps MPI moving in one process: operations under way, a baton, and the serving of requests.

MPI makes progress only while somebody calls it, and its own waiting spins.  So nothing here waits inside MPI: whoever
waits polls, with sleeps in between, and serves meanwhile; while the gradient is computed a thread does the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, Protocol, TypeVar

from mpi4py import MPI
from torch import Tensor

from roundelay.communicator import DeferredReply
from roundelay.errors import CommunicationError
from roundelay.learner import Learner
from roundelay.runs.record import Kind
from roundelay.runtimes.mpi.mpi_messages import Buffers, Bytes, MessageHeader, pack, unpack
from roundelay.runtimes.strategy_lock import StrategyLock
from roundelay.strategy import Strategy

__all__ = ["REPLY", "REQUEST", "TAG_PERIOD", "Engine", "Incoming", "Observer", "Operation", "Outgoing"]

T = TypeVar("T")

TAG_PERIOD = 8192  # sequence numbers in tags go round; MPI promises tags up to 32767 only
REQUEST, REPLY = 0, 1  # answers take TURNS tags from here on

SPIN_SECONDS = 50e-6
SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 1e-3
SLOWEST_BYTES_PER_SECOND = 200e6  # data that moves slower than this is waited for with sleeps, not spinning


class Observer(Protocol):
    """Whoever keeps this learner's clock and record."""

    def now(self) -> float:
        """Return the time."""

    def note(self, kind: Kind, begin: float, end: float, **what: Any) -> None:
        """Take note of how time was spent."""

    def count_bytes(self, count: float) -> None:
        """Take note of bytes sent."""


class Operation(Generic[T]):
    """Something under way; awaiting it blocks until it is done."""

    size = 0
    """How many bytes it moves."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.done = False
        self.error: BaseException | None = None
        self.arrived: float | None = None  # when all that it waits for had come, so that only bytes are to be moved
        self._results: list[T] = []

    def advance(self) -> bool:
        """Go as far as is possible without waiting; tell whether all is done.  The engine's lock is held."""
        raise NotImplementedError

    def result(self) -> T:
        """Return what the verb returns, once all is done.  The baton is held."""
        raise NotImplementedError

    def poll(self) -> bool:
        """Advance, keeping an error for whoever awaits this."""
        if not self.done:
            try:
                self.done = self.advance()
            except MPI.Exception as error:
                self.error, self.done = CommunicationError(f"MPI: {error.Get_error_string()}"), True
            except CommunicationError as error:
                self.error, self.done = error, True
        return self.done

    def __await__(self) -> Generator[None, None, T]:
        yield from ()  # nothing is ever handed to the caller: awaiting blocks
        if not self.done:
            self.engine.wait(self)
        if self.error is not None:
            raise self.error
        if not self._results:
            self._results.append(self.result())
        return self._results[0]


class Outgoing(Operation[None]):
    """Messages on their way out; their buffer is used again when all have left."""

    def __init__(self, engine: Engine, buffer: Bytes, requests: list[MPI.Request]) -> None:
        super().__init__(engine)
        self._buffer, self._requests = buffer, requests

    def advance(self) -> bool:
        """See which have left."""
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
        """Whether it is there, be it only its beginning."""
        return self._request is not None

    @property
    def source(self) -> int:
        """Who sent it."""
        return self._status.Get_source()

    def advance(self) -> bool:
        """Tell whether all of it is here."""
        if self._request is None:
            message = self._comm.Improbe(self._source, self._tag, self._status)  # codespell:ignore improbe
            if message is None:
                return False
            self.size = self._status.Get_count(MPI.BYTE)
            self.buffer = self._buffers.take(self.size)
            self._request = message.Irecv([self.buffer, self.size, MPI.BYTE])
        return self._request.Test()


class Engine:
    """All that is under way in this process.

    ``lock`` guards MPI and the list of operations, and is held for moments only; the baton guards the learner.  Nobody
    asks for the baton while holding the lock.
    """

    def __init__(self, world: MPI.Intracomm, recorder: Observer) -> None:
        if world.size > 1 and MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise CommunicationError("this MPI library was started without threads: requests could not be served")
        self.world, self.recorder, self.now = world, recorder, recorder.now
        self.service = world.Dup()  # requests, answers and barriers, so that they never meet what strategies call
        self.lock, self.strategy_lock, self.buffers = threading.RLock(), StrategyLock(), Buffers()
        self._held = contextlib.ExitStack()
        self._held.enter_context(self.strategy_lock.acquired())  # by the thread that made us, until `stop`
        self.counting = False  # whether others may need us to make progress on a window
        self._pending: list[Operation[Any]] = []
        self._serving: tuple[Learner, Strategy] | None = None
        self._incoming: deque[Incoming] = deque()  # requests, in the order in which they came
        self._own: deque[tuple[Tensor, int, Callable[[Tensor], None]]] = deque()  # to ourselves, before `open`
        self._failure: BaseException | None = None
        self._awake, self._over = threading.Event(), False
        self._thread: threading.Thread | None = None
        self._requests = 0

    # -- operations ---------------------------------------------------------------------------------------------

    def begin(self, operation: Operation[Any]) -> None:
        """Put an operation that has been started on the list."""
        with self.lock:
            if not operation.poll():
                self._pending.append(operation)

    def wait(self, operation: Operation[Any]) -> None:
        """Poll until it is done, with the baton down; serve meanwhile."""
        begin = self.now()
        with self.strategy_lock.released():
            self._poll_until(lambda: operation.done, operation)
        end = self.now()
        arrived = end if operation.arrived is None else min(max(operation.arrived, begin), end)
        self.recorder.note("wait", begin, arrived)
        self.recorder.note("communicate", arrived, end)

    def finish(self, request: MPI.Request, timeout_seconds: float | None = None) -> bool:
        """Wait for an MPI request, polling, with the baton in hand; tell whether it is done in time."""
        pause, begin = _Pause(), time.monotonic()
        while timeout_seconds is None or time.monotonic() < begin + timeout_seconds:
            with self.lock:
                if request.Test():
                    return True
            pause.between(None)
        return False

    def drain(self) -> None:
        """See that all messages have left."""
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
        """Let requests in."""
        self._serving = (learner, strategy)
        while self._own:
            self._serve(*self._own.popleft())

    def stop_serving(self) -> None:
        """Let no more requests in."""
        self._serving = None

    def serve_own(self, x: Tensor, rank: int, send: Callable[[Tensor], None]) -> None:
        """Serve a request to ourselves on the spot, or, before `open`, later."""
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
        """Serve the oldest request that is here; tell whether there was one."""
        if not self._incoming:
            return False
        with self.strategy_lock.acquired():
            with self.lock:
                if not self._incoming or not self._incoming[0].advance():
                    return False
                request = self._incoming.popleft()
            header, theirs = unpack(request.buffer)

            def give(answer: Tensor) -> None:
                self.recorder.count_bytes(answer.nbytes)
                reply = MessageHeader.of("answer", answer, sequence=header.sequence, rank=self.world.rank)
                self.send(self.service, reply, answer, to=request.source, tag=REPLY + header.sequence % TAG_PERIOD)

            self._serve(theirs, header.rank, give)
            with self.lock:
                self.buffers.give(request.buffer)
        return True

    def _serve(self, theirs: Tensor, source: int, send: Callable[[Tensor], None]) -> None:
        assert self._serving is not None
        learner, strategy = self._serving
        begin = self.now()
        answer = strategy.serve(learner, theirs, source)
        if isinstance(answer, DeferredReply):
            answer.on_send(send)
        else:
            send(answer)
        self.recorder.note("serve", begin, self.now(), source=source)

    # -- the thread ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def computing(self, *, busy: bool) -> Iterator[None]:
        """Put the baton down to compute; a thread serves and keeps messages moving meanwhile, where there are any.

        ``busy`` says that verbs will be started during the computation.
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
            except BaseException as error:  # raised again by the other thread, where it next waits
                self._failure = error
                return


class _Pause:
    """Yield at first, then sleep, longer and longer; while bytes of an operation move, only yield."""

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
