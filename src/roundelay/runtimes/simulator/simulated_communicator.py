"""The communicator of a simulated cluster: it moves tensors and charges the virtual clock for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import LearnerLost, Mismatch
from roundelay.learner import Learner
from roundelay.runtimes.simulator.event_loop import VirtualFuture
from roundelay.strategy import Strategy

if TYPE_CHECKING:
    from roundelay.runtimes.simulator.simulation import Simulation

__all__ = ["SimulatedCommunicator", "SimulatedGroup", "SimulatedRank"]

T = TypeVar("T")


@dataclass
class SimulatedRank:
    """One rank of the cluster: who sits there, and from when its serving is free."""

    member: str = ""
    opened: VirtualFuture[tuple[Learner, Strategy]] = field(
        default_factory=lambda: VirtualFuture("a learner that serves")
    )
    free: float = 0.0
    owes: float = 0.0
    """Seconds that answering has cost its learner, which its next gradient takes longer."""
    held: list[Callable[[], None]] | None = None
    """Where the learner stands still: what is to be done when it goes on."""


@dataclass(slots=True)
class _Call:
    """One rank's call of a collective."""

    rank: int

    verb: str
    x: Tensor
    sent: Tensor
    argument: float
    done: VirtualFuture[Any]


@dataclass(slots=True)
class _Moving:
    """How long the bytes of a verb are on the way; the rest of its time is waiting."""

    verb: str
    number: int
    comm: SimulatedCommunicator
    peer: int | None = None
    seconds: float = 0.0

    def __str__(self) -> str:  # made only when it is asked for, which is seldom
        if self.peer is None:
            return f"{self.verb} {self.number} of {self.comm.size} ranks"
        number = f" {self.number}" if self.number else ""
        return f"{self.verb}{number} {'from' if number else 'source'} {self.comm.name_of(self.peer)}"


@dataclass
class SimulatedGroup:
    """What all members of a communicator share."""

    members: tuple[int, ...]
    collectives: dict[int, list[_Call]] = field(default_factory=dict)
    mail: dict[tuple[int, int, int], VirtualFuture[Tensor]] = field(default_factory=dict)
    splits: dict[tuple[int, int], SimulatedGroup] = field(default_factory=dict)


class _Verb(Generic[T]):
    """A verb under way; awaiting it records how long that took, the learner's own handling of ``x_bytes`` included."""

    __slots__ = ("comm", "event", "x_bytes")

    def __init__(self, comm: SimulatedCommunicator, event: VirtualFuture[T], x_bytes: float) -> None:
        self.comm, self.event, self.x_bytes = comm, event, x_bytes

    def __await__(self) -> Generator[VirtualFuture[Any], None, T]:
        sim, event = self.comm.sim, self.event
        begin = sim.kernel.now
        if not event.done:
            yield event
        if event.error is not None:
            raise event.error
        end = sim.kernel.now
        handling = sim.handling(self.x_bytes) if sim.handles and self.comm.size > 1 else 0.0
        if handling:
            yield sim.kernel.sleep(handling)
        if end > begin or handling:
            label = event.label
            moving = min(end - begin, label.seconds) if isinstance(label, _Moving) else 0.0
            moving, end = moving + handling, sim.kernel.now
            member = sim.seats[self.comm.members[self.comm.rank]].member
            sim.record.span("wait", member, begin, end - moving)
            sim.record.span("communicate", member, end - moving, end)
        return event.value


class SimulatedCommunicator:
    """One rank's view of a group."""

    def __init__(self, sim: Simulation, group: SimulatedGroup, rank: int) -> None:
        self.sim, self.group, self.members = sim, group, group.members
        self.rank, self.size, self.epoch = rank, len(group.members), sim.epoch
        self._collectives = self._splits = 0
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the weighted mean."""
        return self._collective("mean", x, weight, self._mean)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Everyone's ``x``."""
        return self._collective("gather", x, 0.0, self._gather)

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``root``'s ``x`` into everyone's."""
        return self._collective("broadcast", x, root, self._broadcast)

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send to one rank, receive from another."""
        self._check_epoch()
        sim = self.sim
        box = self._box(self.rank, to, self._next(self._sent, to))
        copy = x.clone()
        box.label.seconds = sim.send(  # type: ignore[attr-defined]  # a _Moving
            x.nbytes,
            self.members[self.rank],
            self.members[to],
            lambda: None if box.done else sim.kernel.happen(box, copy),
        )
        return _Verb(self, self._box(source, self.rank, self._next(self._received, source)), x.nbytes)

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Have ``to`` serve our ``x``."""
        self._check_epoch()
        answer: VirtualFuture[Tensor] = VirtualFuture(_Moving("the answer", 0, self, to))
        self.sim.pending[answer] = None
        _Request(self, x.clone(), to, answer)
        return _Verb(self, answer, x.nbytes)

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Make the communicator of the group we are in."""
        self._splits += 1
        index = next(k for k, group in enumerate(groups) if self.rank in group)
        ranks = list(groups[index])
        group = self.group.splits.setdefault(
            (self._splits, index), SimulatedGroup(tuple(self.members[rank] for rank in ranks))
        )
        made = SimulatedCommunicator(self.sim, group, ranks.index(self.rank))
        made.epoch = self.epoch  # not the cluster's, which has gone on where this learner was left out
        return made

    # -- collectives --------------------------------------------------------------------------------------------

    def _collective(
        self, verb: str, x: Tensor, argument: float, deliver: Callable[[list[_Call]], None]
    ) -> Awaitable[Any]:
        self._check_epoch()
        self._collectives += 1
        number, sim = self._collectives, self.sim
        calls = self.group.collectives.setdefault(number, [])
        sent = x.clone() if verb == "broadcast" and self.rank == argument else x  # the root's may change at once
        done: VirtualFuture[Any] = VirtualFuture(_Moving(verb, number, self))
        call = _Call(self.rank, verb, x, sent, argument, done)
        if calls:
            self._check_match(number, calls[0], call)
        calls.append(call)
        sim.pending[call.done] = None
        if len(calls) == self.size:
            del self.group.collectives[number]
            calls.sort(key=lambda made: made.rank)
            sizes = [made.x.nbytes for made in calls]
            seconds, moving = sim.network.collective(verb, max(sizes), self.members)
            for made in calls:
                made.done.label.seconds = moving  # type: ignore[attr-defined]  # a _Moving
            sim.count_collective(verb, sizes, self.members)
            sim.kernel.after(seconds, lambda: deliver(calls))
        return _Verb(self, call.done, x.nbytes)

    def _mean(self, calls: list[_Call]) -> None:
        if calls[0].done.done:  # the epoch ended meanwhile
            return
        mean = self.sim.mean_of([call.x for call in calls], [call.argument for call in calls])
        for call in calls:
            if mean is not None:
                call.x.copy_(mean)
            self._done(call, call.x)

    def _gather(self, calls: list[_Call]) -> None:
        if calls[0].done.done:
            return
        everyone = [call.x.clone() for call in calls]
        for call in calls:
            self._done(call, list(everyone))

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
        self.sim.kernel.happen(call.done, value)

    def _check_match(self, number: int, theirs: _Call, mine: _Call) -> None:
        same_shape = mine.verb == "gather" or theirs.x.shape == mine.x.shape
        same_root = mine.verb != "broadcast" or theirs.argument == mine.argument
        if theirs.verb != mine.verb or theirs.x.dtype != mine.x.dtype or not (same_shape and same_root):
            raise Mismatch(
                f"collective {number}: {self.name_of(theirs.rank)} called {_signature(theirs)}, "
                f"{self.name_of(self.rank)} called {_signature(mine)}"
            )

    # -- odds and ends ------------------------------------------------------------------------------------------

    def _check_epoch(self) -> None:
        if self.sim.over or self.epoch != self.sim.epoch:
            raise LearnerLost(self.sim.reason)

    def name_of(self, rank: int) -> str:
        """Return the name of one of the group."""
        return self.sim.seats[self.members[rank]].member

    def _box(self, source: int, target: int, number: int) -> VirtualFuture[Tensor]:
        key = (source, target, number)
        box = self.group.mail.get(key)
        if box is None:
            box = self.group.mail[key] = VirtualFuture(_Moving("exchange", number, self, source))
            self.sim.pending[box] = None
        else:
            del self.group.mail[key]  # the other side has it
        return box

    @staticmethod
    def _next(counts: dict[int, int], peer: int) -> int:
        counts[peer] = counts.get(peer, 0) + 1
        return counts[peer]


class _Request:
    """A request on its way: there, into the queue of those to be served, and back."""

    def __init__(self, comm: SimulatedCommunicator, x: Tensor, to: int, answer: VirtualFuture[Tensor]) -> None:
        self.comm, self.sim, self.x, self.answer = comm, comm.sim, x, answer
        self.source, self.target = comm.members[comm.rank], comm.members[to]
        self.moving = self.sim.send(x.nbytes, self.source, self.target, self.arrive)

    def arrive(self) -> None:
        """Queue for being served, once the learner lets requests in."""
        sim, seat = self.sim, self.sim.seats[self.target]
        if not seat.opened.done:
            seat.opened.waiting.append(self.arrive)
            return
        if seat.held is not None:
            seat.held.append(self.arrive)
            return
        self.begin = max(sim.kernel.now, seat.free)
        busy = 0.0 if sim.network.still else self.x.nbytes * sim.network.scale / sim.cluster.serving_bandwidth
        seat.free, self.moving = self.begin + busy, self.moving + busy
        order = sim.orders.get(self.target)
        if order is not None:
            order.serve_in_turn(self.comm.rank, self.serve)
        else:
            sim.kernel.after(seat.free - sim.kernel.now, self.serve)

    def serve(self) -> None:
        """Have the strategy answer."""
        sim, seat = self.sim, self.sim.seats[self.target]
        if self.answer.done or not seat.opened.done:  # the epoch is over, or the learner is dead
            return
        if seat.held is not None:
            seat.held.append(self.serve)
            return
        learner, strategy = seat.opened.value
        sim.record.span("serve", seat.member, self.begin, sim.kernel.now, source=self.comm.rank)
        if sim.handles:
            seat.owes += sim.handling(self.x.nbytes)
        given = strategy.serve(learner, self.x, self.comm.rank)
        sim.logged("serve", self.target, self.comm.rank)
        if isinstance(given, DeferredReply):
            given.on_send(self.reply)
        else:
            self.reply(given)

    def reply(self, answer: Tensor) -> None:
        """Send the answer back."""
        copy = answer.clone()
        moving = self.sim.send(answer.nbytes, self.target, self.source, lambda: self.deliver(copy))
        self.answer.label.seconds = self.moving + moving  # type: ignore[attr-defined]  # a _Moving

    def deliver(self, answer: Tensor) -> None:
        """Let the answer be there."""
        if not self.answer.done:
            self.sim.pending.pop(self.answer, None)
            self.sim.kernel.happen(self.answer, answer)


def _signature(call: _Call) -> str:
    root = f", root={int(call.argument)}" if call.verb == "broadcast" else ""
    return f"{call.verb}({tuple(call.x.shape)} {str(call.x.dtype).removeprefix('torch.')}{root})"
