"""The communicator of a simulated cluster: it moves tensors and charges the virtual clock for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import LearnerLost, Mismatch
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop
from roundelay.runtimes.simulator.network import SimulatedNetwork
from roundelay.runtimes.simulator.recorded_order import ReplayOrder
from roundelay.strategy import Strategy

T = TypeVar("T")


def not_serving() -> VirtualFuture[tuple[Learner, Strategy]]:
    """Return the future of the learner and the strategy that will serve requests."""
    return VirtualFuture("a learner that serves")


@dataclass
class SimulatedRank:
    """One rank of the cluster, by its initial number."""

    member: str = ""
    serving: VirtualFuture[tuple[Learner, Strategy]] = field(default_factory=not_serving)
    free_at: float = 0.0
    """When it has served all requests that have arrived."""
    pending_seconds: float = 0.0
    """Time that serving has cost the learner; its next gradient takes so much longer."""
    deferred: list[Callable[[], None]] | None = None
    """While the learner is stopped: what to do when it continues."""


class SimulatedCluster(Protocol):
    """What a simulated communicator needs of the simulation."""

    loop: VirtualLoop
    cluster: Cluster
    network: SimulatedNetwork
    record: Record
    ranks: list[SimulatedRank]
    generation: int
    ended_early: bool
    """Whether this generation has ended, for ``end_reason``, and no other has begun."""
    end_reason: str
    pending: dict[VirtualFuture[Any], None]
    charges_learner: bool
    """Whether an operation costs the learner itself time."""
    mean_of: Callable[[Sequence[Tensor], Sequence[float]], Tensor | None]

    @property
    def orders(self) -> Mapping[int, ReplayOrder]:
        """The recorded orders that ranks follow, by rank."""

    def send(self, x_bytes: int, source: int, target: int, arrived: Callable[[], None]) -> float:
        """Send a message; return the seconds that it moves."""

    def blank(self, like: Tensor) -> Tensor:
        """Return memory for one message, which need not be copied."""

    def owned(self, x: Tensor) -> Tensor:
        """Return ``x`` if `blank` returned it, else a copy."""

    def learner_seconds(self, x_bytes: float) -> float:
        """Return the seconds that an operation costs the learner itself."""

    def count_collective(self, operation: str, sizes: Sequence[int], members: Sequence[int]) -> None:
        """Count the bytes that each member of a collective sends."""

    def log_event(self, event: str, rank: int, source: int) -> None:
        """Log an event, if a log is kept."""


@dataclass(slots=True)
class _Call:
    """One rank's call of a collective."""

    rank: int
    operation: str
    x: Tensor
    sent: Tensor
    argument: float
    done: VirtualFuture[Any]


@dataclass(slots=True)
class _Progress:
    """The label of an operation's future; ``seconds`` is how long its bytes move, the rest of its time is waiting."""

    operation: str
    number: int
    comm: SimulatedCommunicator
    peer: int | None = None
    seconds: float = 0.0

    def __str__(self) -> str:  # called for deadlocks only
        if self.peer is None:
            return f"{self.operation} {self.number} of {self.comm.size} ranks"
        number = f" {self.number}" if self.number else ""
        return f"{self.operation}{number} from {self.comm.name_of(self.peer)}"


@dataclass
class SimulatedGroup:
    """What all members of a communicator share."""

    members: tuple[int, ...]
    collectives: dict[int, list[_Call]] = field(default_factory=dict)
    exchanges: dict[tuple[int, int, int], VirtualFuture[Tensor]] = field(default_factory=dict)
    splits: dict[tuple[int, int], SimulatedGroup] = field(default_factory=dict)


class _Operation(Generic[T]):
    """An operation under way; awaiting it records its time, with the learner's own time for ``x_bytes``."""

    __slots__ = ("comm", "future", "x_bytes")

    def __init__(self, comm: SimulatedCommunicator, future: VirtualFuture[T], x_bytes: float) -> None:
        self.comm, self.future, self.x_bytes = comm, future, x_bytes

    def __await__(self) -> Generator[VirtualFuture[Any], None, T]:
        sim, future = self.comm.sim, self.future
        begin = sim.loop.now
        if not future.done:
            yield future
        if future.error is not None:
            raise future.error
        end = sim.loop.now
        own = sim.learner_seconds(self.x_bytes) if sim.charges_learner and self.comm.size > 1 else 0.0
        if own:
            yield sim.loop.sleep(own)
        if end > begin or own:
            label = future.label
            moving = min(end - begin, label.seconds) if isinstance(label, _Progress) else 0.0
            moving, end = moving + own, sim.loop.now
            member = sim.ranks[self.comm.members[self.comm.rank]].member
            sim.record.span("wait", member, begin, end - moving)
            sim.record.span("communicate", member, end - moving, end)
        return future.value


class SimulatedCommunicator:
    """One rank's view of a group."""

    def __init__(self, sim: SimulatedCluster, group: SimulatedGroup, rank: int) -> None:
        self.sim, self.group, self.members = sim, group, group.members
        self.rank, self.size, self.generation = rank, len(group.members), sim.generation
        self._collectives = self._splits = 0
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the weighted mean."""
        return self._collective("mean", x, weight, self._mean)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Return ``x`` of all ranks."""
        return self._collective("gather", x, 0.0, self._gather)

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``x`` of rank ``root`` into ``x`` of all ranks."""
        return self._collective("broadcast", x, root, self._broadcast)

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send ``x`` to one rank, receive a tensor from another."""
        self._check_generation()
        sim = self.sim
        message = self._message(self.rank, to, self._next(self._sent, to))
        copy = sim.owned(x)
        message.label.seconds = sim.send(  # type: ignore[attr-defined]  # a _Progress
            x.nbytes,
            self.members[self.rank],
            self.members[to],
            lambda: None if message.done else sim.loop.set_result(message, copy),
        )
        return _Operation(self, self._message(source, self.rank, self._next(self._received, source)), x.nbytes)

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to``; return the reply of its strategy's `serve`."""
        self._check_generation()
        reply: VirtualFuture[Tensor] = VirtualFuture(_Progress("the reply", 0, self, to))
        self.sim.pending[reply] = None
        _Request(self, self.sim.owned(x), to, reply)
        return _Operation(self, reply, x.nbytes)

    def blank(self, like: Tensor) -> Tensor:
        """Return memory for one message."""
        return self.sim.blank(like)

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Return the communicator of our group."""
        self._splits += 1
        index = next(k for k, group in enumerate(groups) if self.rank in group)
        ranks = list(groups[index])
        group = self.group.splits.setdefault(
            (self._splits, index), SimulatedGroup(tuple(self.members[rank] for rank in ranks))
        )
        made = SimulatedCommunicator(self.sim, group, ranks.index(self.rank))
        made.generation = self.generation  # the cluster's is newer if this learner was excluded
        return made

    # -- collectives --------------------------------------------------------------------------------------------

    def _collective(
        self, operation: str, x: Tensor, argument: float, deliver: Callable[[list[_Call]], None]
    ) -> Awaitable[Any]:
        self._check_generation()
        self._collectives += 1
        number, sim = self._collectives, self.sim
        calls = self.group.collectives.setdefault(number, [])
        sent = x.clone() if operation == "broadcast" and self.rank == argument else x  # the root may change x at once
        done: VirtualFuture[Any] = VirtualFuture(_Progress(operation, number, self))
        call = _Call(self.rank, operation, x, sent, argument, done)
        if calls:
            self._check_match(number, calls[0], call)
        calls.append(call)
        sim.pending[call.done] = None
        if len(calls) == self.size:
            del self.group.collectives[number]
            calls.sort(key=lambda made: made.rank)
            sizes = [made.x.nbytes for made in calls]
            seconds, moving = sim.network.collective(operation, max(sizes), self.members)
            for made in calls:
                made.done.label.seconds = moving  # type: ignore[attr-defined]  # a _Progress
            sim.count_collective(operation, sizes, self.members)
            sim.loop.call_later(seconds, lambda: deliver(calls))
        return _Operation(self, call.done, x.nbytes)

    def _mean(self, calls: list[_Call]) -> None:
        if calls[0].done.done:  # the generation has ended meanwhile
            return
        mean = self.sim.mean_of([call.x for call in calls], [call.argument for call in calls])
        for call in calls:
            if mean is not None:
                call.x.copy_(mean)
            self._done(call, call.x)

    def _gather(self, calls: list[_Call]) -> None:
        if calls[0].done.done:
            return
        results = [call.x.clone() for call in calls]  # read only, so all ranks get the same ones
        for call in calls:
            self._done(call, list(results))

    def _broadcast(self, calls: list[_Call]) -> None:
        if calls[0].done.done:
            return
        root = int(calls[0].argument)
        for call in calls:
            if call.rank != root:
                call.x.copy_(calls[root].sent)
            self._done(call, call.x)

    def _done(self, call: _Call, value: Any) -> None:
        self.sim.pending.pop(call.done, None)
        self.sim.loop.set_result(call.done, value)

    def _check_match(self, number: int, theirs: _Call, mine: _Call) -> None:
        same_shape = mine.operation == "gather" or theirs.x.shape == mine.x.shape
        same_root = mine.operation != "broadcast" or theirs.argument == mine.argument
        if theirs.operation != mine.operation or theirs.x.dtype != mine.x.dtype or not (same_shape and same_root):
            raise Mismatch(
                f"collective {number}: {self.name_of(theirs.rank)} called {_signature(theirs)}, "
                f"{self.name_of(self.rank)} called {_signature(mine)}"
            )

    # -- helpers ------------------------------------------------------------------------------------------------

    def _check_generation(self) -> None:
        if self.sim.ended_early or self.generation != self.sim.generation:
            raise LearnerLost(self.sim.end_reason)

    def name_of(self, rank: int) -> str:
        """Return the name of a rank of this group."""
        return self.sim.ranks[self.members[rank]].member

    def _message(self, source: int, target: int, number: int) -> VirtualFuture[Tensor]:
        key = (source, target, number)
        message = self.group.exchanges.get(key)
        if message is None:
            message = self.group.exchanges[key] = VirtualFuture(_Progress("exchange", number, self, source))
            self.sim.pending[message] = None
        else:
            del self.group.exchanges[key]  # the other side has it
        return message

    @staticmethod
    def _next(counts: dict[int, int], peer: int) -> int:
        counts[peer] = counts.get(peer, 0) + 1
        return counts[peer]


class _Request:
    """A request under way: to its target, through the target's queue, and back."""

    def __init__(self, comm: SimulatedCommunicator, x: Tensor, to: int, reply: VirtualFuture[Tensor]) -> None:
        self.comm, self.sim, self.x, self.reply_future = comm, comm.sim, x, reply
        self.source, self.target = comm.members[comm.rank], comm.members[to]
        self.moving = self.sim.send(x.nbytes, self.source, self.target, self.arrive)

    def arrive(self) -> None:
        """Join the queue, as soon as the target serves requests."""
        sim, rank = self.sim, self.sim.ranks[self.target]
        if not rank.serving.done:
            rank.serving.callbacks.append(self.arrive)
            return
        if rank.deferred is not None:
            rank.deferred.append(self.arrive)
            return
        self.begin = max(sim.loop.now, rank.free_at)
        busy = 0.0 if sim.network.paused else self.x.nbytes * sim.network.scale / sim.cluster.serving_bandwidth
        rank.free_at, self.moving = self.begin + busy, self.moving + busy
        order = sim.orders.get(self.target)
        if order is not None:
            order.serve_in_turn(self.comm.rank, self.serve)
        else:
            sim.loop.call_later(rank.free_at - sim.loop.now, self.serve)

    def serve(self) -> None:
        """Let the strategy serve the request."""
        sim, rank = self.sim, self.sim.ranks[self.target]
        if self.reply_future.done or not rank.serving.done:  # the generation has ended, or the learner is dead
            return
        if rank.deferred is not None:
            rank.deferred.append(self.serve)
            return
        learner, strategy = rank.serving.value
        sim.record.span("serve", rank.member, self.begin, sim.loop.now, source=self.comm.rank)
        if sim.charges_learner:
            rank.pending_seconds += sim.learner_seconds(self.x.nbytes)
        given = strategy.serve(learner, self.x, self.comm.rank)
        sim.log_event("serve", self.target, self.comm.rank)
        if isinstance(given, DeferredReply):
            given.on_send(self.send_reply)
        else:
            self.send_reply(given)

    def send_reply(self, reply: Tensor) -> None:
        """Send the reply back."""
        copy = self.sim.owned(reply)
        moving = self.sim.send(reply.nbytes, self.target, self.source, lambda: self.deliver(copy))
        self.reply_future.label.seconds = self.moving + moving  # type: ignore[attr-defined]  # a _Progress

    def deliver(self, reply: Tensor) -> None:
        """Complete the request."""
        if not self.reply_future.done:
            self.sim.pending.pop(self.reply_future, None)
            self.sim.loop.set_result(self.reply_future, reply)


def _signature(call: _Call) -> str:
    root = f", root={int(call.argument)}" if call.operation == "broadcast" else ""
    return f"{call.operation}({tuple(call.x.shape)} {str(call.x.dtype).removeprefix('torch.')}{root})"
