"""The runtime of real processes: wall time, shared memory on a host, gloo between hosts, learners that may be lost."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from roundelay.communicator import Communicator
from roundelay.errors import CommunicationError, LearnerLost
from roundelay.learner import Learner
from roundelay.runs.record import Kind, Record
from roundelay.runtime import Clock, GradientWork, MakePlan, Membership
from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes.membership import GenerationAgreement, MembershipProtocol
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore
from roundelay.runtimes.processes.transport.messages import Message
from roundelay.runtimes.processes.transport.session import Session, serve_next
from roundelay.runtimes.processes.transport_choice import Endpoint, Options, ProcessInfo
from roundelay.runtimes.strategy_lock import Blocking, StrategyLock, run_blocking
from roundelay.strategy import Strategy

__all__ = ["Options", "ProcessInfo", "ProcessRuntime", "connect_world", "from_environment"]

T = TypeVar("T")
FLUSH_SECONDS = 1.0
JOIN_SECONDS = 2.0


class ProcessRuntime:
    """One learner's process.

    Whoever makes it holds the baton from then on, and puts it down wherever it awaits or computes.
    """

    clock: Clock = "wall"

    def __init__(
        self,
        store: KeyValueStore,
        process: ProcessInfo,
        options: Options,
        *,
        folder: Path | None = None,
        attempt: int = 0,
    ) -> None:
        self.process, self.options, self.elastic = process, options, process.elastic
        self.initial_rank, self.initial_size = process.initial_rank, process.size
        name = f"record-{process.initial_rank}-{attempt}.jsonl" if attempt else f"record-{process.initial_rank}.jsonl"
        part = folder / name if folder is not None else None
        self.record = Record(part, clock=self.clock, spans=options.max_spans)
        self.strategy_lock = StrategyLock()
        self.strategy_lock.acquire()
        began: float = store.setdefault("began", time.time())
        self._origin = time.monotonic() - (time.time() - began)
        self.store = store
        self._membership = MembershipProtocol(
            store, process.initial_rank, process.size, heartbeat_timeout=options.heartbeat_timeout, newcomer=attempt > 0
        )
        self._session: Session | None = None
        self._me: Learner | None = None
        self._slowness = options.slow.get(process.initial_rank, 1.0)
        self.slowed: list[tuple[float, float, float]] = []
        """From when to when we are slowed on purpose, and by what factor."""
        self._still_since: float | None = None
        self._flushed = 0.0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the training loop to its end."""
        return run_blocking(work)

    # -- time and records ---------------------------------------------------------------------------------------

    @property
    def member(self) -> str:
        """Our name in records."""
        if self._me is None:
            return f"learner {self.process.initial_rank}"
        return f"{'server' if self._me.is_server else 'learner'} {self._me.index}"

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._origin

    def span(self, kind: Kind, begin: float, **what: Any) -> None:
        """Write down how the time since ``begin`` went, unless learners are meeting: all that is `evaluate`."""
        if self._still_since is None:
            self.record.span(kind, self.member, begin, self.now(), **what)

    def sent(self, nbytes: int) -> None:
        """Add to the bytes sent."""
        self.record.add(self.member, "bytes", nbytes)

    def pause_clock(self, *, paused: bool) -> None:
        """Count the time of a meeting as evaluation."""
        if paused:
            self._still_since = self.now()
        elif self._still_since is not None:
            since, self._still_since = self._still_since, None
            self.span("evaluate", since)

    def capture(self) -> dict[str, Any]:
        """Return the time and the record's place."""
        return {"now": self.now(), "record": self.record.mark()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._origin = time.monotonic() - state["now"]
        self._still_since = self.now()
        if "record" in state:
            self.record.rewind(state["record"])

    # -- membership ---------------------------------------------------------------------------------------------

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Agree on a new epoch with everyone who is here, and connect."""
        self._me, self._still_since = learner, None
        if self._session is not None:
            self._end_generation(report.get("reason") or "a learner was lost")
        while True:
            offer = Endpoint(self.process, self.options.transport, learner.weights.device.type, self._lost)
            with self.strategy_lock.released():
                agreement = self._membership.agree(report, make_plan, offer.address)
            rank = agreement.members.index(self._membership.id)
            try:
                learner.comm = self._connect(agreement, rank, offer)
            except CommunicationError as error:  # one of them has ended since it was ready
                self._membership.end(str(error))
                offer.close()
                continue
            return Membership(agreement.generation, rank, len(agreement.members), agreement.plan)

    def _connect(self, agreement: GenerationAgreement, rank: int, offer: Endpoint) -> Communicator:
        session, comm = offer.connect(agreement, rank, self.strategy_lock, self, self.store)
        self._session = session
        self._membership.watch(session.abort)
        return comm

    def _end_generation(self, reason: str) -> None:
        assert self._session is not None
        if not self.elastic:
            raise CommunicationError(f"{self._session.end_reason or reason}; this run cannot go on without it")
        self._membership.end(self._session.end_reason or reason)
        self._session.abort(reason)
        self._session.close()
        self._session = None

    def _lost(self, reason: str) -> None:
        session = self._session
        if session is not None:
            session.abort(reason)

    def has_newcomers(self, key: str = "") -> bool:
        """Tell whether somebody waits to join; all who ask by the same ``key`` are told the same."""
        with self.strategy_lock.released():
            return self._membership.has_newcomers(key)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Put down minibatches as safe."""
        self._membership.mark_safe(numbers)

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a number common to all of this epoch."""
        name = f"count/{self._membership.generation}/{key}"

        def add() -> int:
            if (
                self._session is not None and self._session.end_reason is not None
            ):  # one who asks nobody may not know yet
                raise LearnerLost(self._session.end_reason)
            begin = self.now()
            with self.strategy_lock.released():
                total = self.store.add(name, amount)
            self.span("communicate", begin)
            return total - amount

        return Blocking(add)

    def leave(self) -> None:
        """Finish: stay reachable until all others have finished, too, then close everything."""
        with self.strategy_lock.released():
            self._membership.leave()
        self.stop()

    def stop(self) -> None:
        """Close everything; again is harmless."""
        self._membership.stop()
        session, self._session = self._session, None
        if session is not None:
            session.strategy = None
            session.transport.wake()
            session.close()
            with self.strategy_lock.released():
                for thread in session.threads:
                    thread.join(timeout=JOIN_SECONDS)
        self.record.close(self.now())

    # -- serving ------------------------------------------------------------------------------------------------

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Let requests in."""
        session = self._session
        assert session is not None
        first, session.learner, session.strategy = session.strategy is None, learner, strategy
        if first and session.transport.size > 1:
            thread = threading.Thread(target=self._serve, args=(session,), name="serve", daemon=True)
            session.threads.append(thread)
            thread.start()

    async def stop_serving(self, learner: Learner) -> None:
        """Let no more requests in; where nobody else will, part from the others, too."""
        if self._session is not None:
            self._session.strategy = None
            self._session.transport.wake()
        if not self.elastic:
            with self.strategy_lock.released():
                self._membership.leave()

    def _serve(self, session: Session) -> None:
        early: list[Message] = []  # by way of a group that we have not split off yet

        def arrived() -> Message | bool | None:
            for index, held in enumerate(early):
                if held.label.group in session.groups:
                    return early.pop(index)
            while (message := session.transport.next_request()) is not None:
                if message.label.group in session.groups:
                    return message
                early.append(message)
            return False if session.strategy is None else None

        try:
            while isinstance(message := session.transport.wait(arrived, requests=True), Message):
                with self.strategy_lock.acquired():
                    if session.end_reason is not None or session.strategy is None:
                        return
                    serve_next(session, message)
        except LearnerLost:
            return
        except BaseException as error:
            session.fail(error)

    # -- computing ----------------------------------------------------------------------------------------------

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Run ``work`` without the baton, which is taken to tell the strategy of ready parts."""
        with self.computing(learner) as guard:

            def ready(part: slice) -> None:
                with guard():
                    work.ready(part)

            work.run(ready)

    @contextmanager
    def computing(self, learner: Learner) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Put the baton down; what is yielded takes it."""
        begin = self.now()
        with self.strategy_lock.released():
            yield self.strategy_lock.acquired
            slowness = self._slowness
            for since, until, factor in self.slowed:
                slowness *= factor if since <= begin < until else 1.0
            if slowness > 1.0:
                time.sleep((slowness - 1.0) * (self.now() - begin))
        self.span("compute", begin, frames=learner.frames)
        if begin > self._flushed + FLUSH_SECONDS:
            self._flushed = begin
            self.record.flush()


def from_environment(
    options: Options | None = None, *, folder: Path | None = None, part: str = "run"
) -> ProcessRuntime | None:
    """Return the runtime of a process that torchrun or Slurm has started; ``None`` where neither has.

    The world is given: a lost learner ends the attempt, with a clear error.  Where several runs follow each other in
    one process, each is a ``part`` of its own.
    """
    world = environment.find()
    if world is None:
        return None
    options = options or Options()
    torch.set_num_threads(options.threads)
    store = connect_world(world, options.heartbeat_timeout).with_prefix(part)
    place = ProcessInfo(world.rank, world.size, host=world.host, address=world.address)
    runtime = ProcessRuntime(store, place, options, folder=folder)
    atexit.register(runtime.stop)
    return runtime


@functools.cache
def connect_world(world: environment.World, heartbeat_timeout: float) -> KeyValueStore:
    """Connect to the store, or keep it, once in a process."""
    return world.connect(heartbeat_timeout)
