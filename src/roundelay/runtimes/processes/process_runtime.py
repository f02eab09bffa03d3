"""The runtime of real processes: shared memory on one host, gloo between hosts; learners may be lost."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

from roundelay.communicator import Communicator
from roundelay.devices import identify_device, use_device
from roundelay.errors import CommunicationError, LearnerLost, SettingsError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtime import GradientWork, MakePlan, Membership
from roundelay.runtimes.blocking import Blocking, StrategyLock
from roundelay.runtimes.messages import Message
from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes.membership import GenerationAgreement, MembershipProtocol
from roundelay.runtimes.processes.options import Options, ProcessInfo, TransportName
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.gloo_messages import GlooTransport
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone
from roundelay.runtimes.processes.transport.shared_memory_communicator import SharedMemoryCommunicator
from roundelay.runtimes.processes.transport.shared_memory_messages import SharedMemoryTransport
from roundelay.runtimes.processes.transport.torch_communicator import TorchCommunicator, connect_by_device
from roundelay.runtimes.session import Session, serve_message
from roundelay.runtimes.wall_clock import TimeRecorder, WallClock, sleep
from roundelay.strategy import Strategy

FLUSH_SECONDS = 1.0
ABANDON_SECONDS = 1.0
JOIN_SECONDS = 2.0


class ProcessRuntime(WallClock):
    """One learner's process.

    The thread that makes it holds the strategy lock from then on, and releases it while it awaits or computes.
    """

    def __init__(
        self,
        store: KeyValueStore,
        process: ProcessInfo,
        options: Options,
        *,
        folder: Path | None = None,
        attempt: int = 0,
        has_ended: Callable[[int], bool] | None = None,
    ) -> None:
        name = f"record-{process.initial_rank}-{attempt}.jsonl" if attempt else f"record-{process.initial_rank}.jsonl"
        part = folder / name if folder is not None else None
        record = Record(part, clock=self.clock, spans=options.max_spans)
        super().__init__(record, process.initial_rank, process.size)
        self.process, self.options, self.elastic = process, options, process.elastic
        self.strategy_lock = StrategyLock()
        self.strategy_lock.acquire()
        began: float = store.setdefault("began", time.time())
        self.set_clock(time.time() - began)
        self.store = store
        self._membership = MembershipProtocol(
            store,
            process.initial_rank,
            process.size,
            heartbeat_timeout=options.heartbeat_timeout,
            newcomer=attempt > 0,
            has_ended=has_ended,
        )
        self._session: Session | None = None
        self._slowness = options.slow.get(process.initial_rank, 1.0)
        self.slowed: list[tuple[float, float, float]] = []
        """Planned slowness: begin, end and factor."""
        self._flushed = 0.0

    # -- membership ---------------------------------------------------------------------------------------------

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Agree on a new generation with all present ranks, and connect."""
        self.learner, self._paused_since = learner, None
        if self._session is not None:
            self._end_generation(report.get("reason") or "a learner was lost")
        while True:
            endpoint = Endpoint(self.process, self.options.transport, learner.weights.device, self._lost)
            with self.strategy_lock.released():
                agreement = self._membership.agree(report, make_plan, endpoint.address)
            if not self.elastic and len(agreement.members) < self.process.size:
                lost = sorted({*range(self.process.size)} - {*agreement.members})[0]
                raise CommunicationError(f"learner {lost} ended before the run began; it cannot begin without it")
            rank = agreement.members.index(self._membership.id)
            try:
                learner.comm = self._connect(agreement, rank, endpoint)
            except CommunicationError as error:  # a member has ended since it was ready
                self._membership.end(str(error))
                endpoint.close()
                continue
            return Membership(agreement.generation, rank, len(agreement.members), agreement.plan)

    def _connect(self, agreement: GenerationAgreement, rank: int, endpoint: Endpoint) -> Communicator:
        session, comm = endpoint.connect(agreement, rank, self.strategy_lock, self, self.store)
        self._session = session
        self._membership.watch(session.abort)
        return comm

    def _end_generation(self, reason: str) -> None:
        assert self._session is not None
        if not self.elastic:
            raise CommunicationError(f"{self._session.end_reason or reason}; this run cannot continue without it")
        self._membership.end(self._session.end_reason or reason)
        self._session.abort(reason)
        self._session.close()
        self._session = None

    def _lost(self, reason: str) -> None:
        session = self._session
        if session is not None:
            session.abort(reason)

    def has_newcomers(self, key: str = "") -> bool:
        """Return whether a newcomer is waiting; all members that pass the same ``key`` get the same answer."""
        with self.strategy_lock.released():
            return self._membership.has_newcomers(key)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Record that other learners also have these minibatches."""
        self._membership.mark_safe(numbers)

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a counter of this generation."""
        name = f"count/{self._membership.generation}/{key}"

        def add() -> int:
            if (
                self._session is not None and self._session.end_reason is not None
            ):  # without communication we may not know yet
                raise LearnerLost(self._session.end_reason)
            begin = self.now()
            with self.strategy_lock.released():
                total = self.store.add(name, amount)
            self.span("communicate", begin)
            return total - amount

        return Blocking(add)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Sleep without the strategy lock."""
        return Blocking(lambda: sleep(self, self.strategy_lock, seconds))

    def leave(self) -> None:
        """Finish: wait until all others have finished, then close everything."""
        with self.strategy_lock.released():
            self._membership.leave()
        self.stop()

    def abandon(self, reason: str) -> None:
        """Leave without the others, who are told the ``reason``, and close everything."""
        with contextlib.suppress(StoreGone), self.strategy_lock.released():
            self._membership.end(reason)
            self._membership.await_others(ABANDON_SECONDS)  # this process may host the store in which they read it
        self.stop()

    def stop(self) -> None:
        """Close everything; may be called again."""
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
        """Serve requests from now on."""
        session = self._session
        assert session is not None
        first, session.learner, session.strategy = session.strategy is None, learner, strategy
        if first and session.transport.size > 1:
            thread = threading.Thread(target=self._serve, args=(session,), name="serve", daemon=True)
            session.threads.append(thread)
            thread.start()

    async def stop_serving(self, learner: Learner) -> None:
        """Stop serving; if the run is not elastic, also leave the membership."""
        if self._session is not None:
            self._session.strategy = None
            self._session.transport.wake()
        if not self.elastic:
            with self.strategy_lock.released():
                self._membership.leave()

    def _serve(self, session: Session) -> None:
        early: list[Message] = []  # sent in a group that we have not split off yet
        assert session.learner is not None
        use_device(session.learner.weights.device)

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
                    serve_message(session, message)
        except LearnerLost:
            return
        except BaseException as error:
            session.fail(error)

    # -- computing ----------------------------------------------------------------------------------------------

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Run ``work`` without the strategy lock, which is acquired for calls of `ready`."""
        with self.computing(learner) as guard:

            def ready(part: slice) -> None:
                with guard():
                    work.ready(part)

            work.run(ready)

    @contextmanager
    def computing(self, learner: Learner) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Release the strategy lock; yield what acquires it."""
        begin = self.now()
        with self.strategy_lock.released():
            yield self.strategy_lock.acquired
            slowness = self._slowness
            for since, until, factor in self.slowed:
                slowness *= factor if since <= begin < until else 1.0
            if slowness > 1.0:
                time.sleep((slowness - 1.0) * (self.now() - begin))
        if learner.frames:  # else it had no minibatch, or a user loop does something else
            self.span("compute", begin, frames=learner.frames)
        if begin > self._flushed + FLUSH_SECONDS:
            self._flushed = begin
            self.record.flush()


class Endpoint:
    """How to reach this process in the next generation: shared memory or gloo; all members choose the same."""

    def __init__(
        self, process: ProcessInfo, transport: TransportName, device: torch.device, lost: Callable[[str], None]
    ) -> None:
        self._host_address, self._transport, self._lost, self._device = process.address, transport, lost, device
        share = transport != "gloo" and segments.usable()
        self._memory = SharedMemoryTransport() if share else None
        self.address = {
            "host": process.host,
            "memory": self._memory.address if self._memory is not None else None,
            "device": identify_device(device),
        }

    def connect(
        self,
        agreement: GenerationAgreement,
        rank: int,
        strategy_lock: StrategyLock,
        recorder: TimeRecorder,
        store: KeyValueStore,
    ) -> tuple[Session, Communicator]:
        """Connect to all members of a generation."""
        addresses, members = agreement.endpoints, range(len(agreement.endpoints))
        memory = self._memory
        on_cpu = self._device.type == "cpu"
        connect = connect_by_device(store, agreement.generation, self._host_address)
        places = [] if on_cpu else [f"{each['host']} {each['device']}" for each in addresses]
        if memory is not None and all(each["memory"] and each["host"] == self.address["host"] for each in addresses):
            memory.connect(rank, [each["memory"] for each in addresses])
            session = Session(memory, strategy_lock, recorder)
            if on_cpu or len(set(places)) < len(places):  # no library connects two ranks on one device
                return session, SharedMemoryCommunicator(session, memory, members)
            return session, TorchCommunicator(session, members, connect, places=places)
        if self._transport == "shared":
            raise SettingsError(
                "transport: learners on several hosts, or on this machine, cannot share memory; use gloo"
            )
        self.close()
        messages = GlooTransport(rank, len(members), lambda: connect("messages", rank, len(members), "cpu"), self._lost)
        session = Session(messages, strategy_lock, recorder)
        return session, TorchCommunicator(session, members, connect, places=places)

    def close(self) -> None:
        """Free the shared memory, if there is any."""
        if self._memory is not None:
            self._memory.close()


def from_environment(
    options: Options | None = None, *, folder: Path | None = None, part: str = "run"
) -> ProcessRuntime | None:
    """Return the runtime of a process that torchrun or Slurm has started; ``None`` if neither has.

    The world is fixed: a lost learner ends the attempt with an error.  If one process makes several runs one after
    another, each needs its own ``part``.
    """
    world = environment.find()
    if world is None:
        return None
    options = options or Options()
    torch.set_num_threads(options.threads)
    store = connect_world(world, options.heartbeat_timeout).with_prefix(part)
    process = ProcessInfo(world.rank, world.size, host=world.host, address=world.address)
    runtime = ProcessRuntime(store, process, options, folder=folder, has_ended=environment.Siblings(world).has_ended)
    atexit.register(runtime.stop)
    return runtime


@functools.cache
def connect_world(world: environment.World, heartbeat_timeout: float) -> KeyValueStore:
    """Connect to the store, or start it; once per process."""
    return world.connect(heartbeat_timeout)
