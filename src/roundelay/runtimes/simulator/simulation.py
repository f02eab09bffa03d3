"""A cluster in virtual time with real gradients: many learners in this one process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from roundelay.errors import LearnerLost, SettingsError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtime import Clock, GradientWork, MakePlan, Membership, Trainee
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop, VirtualTask
from roundelay.runtimes.simulator.network import SimulatedNetwork
from roundelay.runtimes.simulator.recorded_order import ReplayOrder
from roundelay.runtimes.simulator.simulated_communicator import (
    SimulatedCommunicator,
    SimulatedGroup,
    SimulatedRank,
    not_serving,
)
from roundelay.runtimes.simulator.simulated_membership import AnyFault, SimulatedMembership
from roundelay.runtimes.weighted_mean import mean_of
from roundelay.strategy import Strategy

T = TypeVar("T")
TraineeT = TypeVar("TraineeT", bound=Trainee)
FORWARD = 1 / 3  # share of a gradient's time: the backward pass takes about twice as long


class Simulation(SimulatedMembership):
    """The cluster that simulated learners share: its event loop, network, membership and record."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        learners: int,
        servers: int = 0,
        seed: int = 0,
        record: Record | None = None,
        shuffle: int | None = None,
    ) -> None:
        if learners < 1:
            raise SettingsError(f"learners must be at least 1, not {learners}")
        size = learners + servers
        ranks = [
            SimulatedRank(member=f"server {rank}" if rank < servers else f"learner {rank - servers}")
            for rank in range(size)
        ]
        record = record if record is not None else Record(None, clock="virtual")
        super().__init__(VirtualLoop(shuffle), cluster, ranks, servers, record)
        self.learners, self.seed = learners, seed
        self.network = SimulatedNetwork(self.loop, cluster, cluster.node_of_ranks(learners, servers))
        self.counts: dict[str, int] = {}
        self.charges_learner = cluster.charges_learner
        self.mean_of: Callable[[Sequence[Tensor], Sequence[float]], Tensor | None] = mean_of
        self.log: list[tuple[str, int, int]] | None = None
        self._blanks: dict[int, Tensor] = {}
        self.orders: dict[int, ReplayOrder] = {}  # by rank, if it follows a recorded order

    def start(self, rank: int, work: Coroutine[Any, Any, Any]) -> VirtualTask[Any]:
        """Schedule a learner's training."""
        task = self.loop.spawn(work, self.ranks[rank].member)
        self.watch_end(rank, task)
        return task

    def run(self) -> None:
        """Run the whole simulation."""
        self.schedule()
        self.loop.run()

    def connect(self, learners: list[Learner]) -> None:
        """Give the members of a new generation, in rank order, their communicators."""
        group = SimulatedGroup(tuple(self.alive))
        for rank, learner in enumerate(learners):
            learner.comm = SimulatedCommunicator(self, group, rank)

    def capture(self) -> dict[str, Any]:
        """Return what a checkpoint saves of the cluster: ties, busy links, pending serving, the record."""
        return {
            "ties": self.loop.capture(),
            "ports": self.network.capture(),
            "serving": [[rank.free_at, rank.pending_seconds] for rank in self.ranks],
            "record": self.record.mark(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `capture` returned; links of a cluster of another size start free."""
        self.loop.restore(state["ties"])
        if len(state["serving"]) == len(self.ranks):
            self.network.restore(state["ports"])
            for rank, (free_at, pending_seconds) in zip(self.ranks, state["serving"], strict=True):
                rank.free_at, rank.pending_seconds = free_at, pending_seconds
        self.record.rewind(state["record"])

    # -- what a communicator needs ------------------------------------------------------------------------------

    def send(self, x_bytes: int, source: int, target: int, arrived: Callable[[], None]) -> float:
        """Send a message over the network; return the seconds that it moves."""
        self.record.add(self.ranks[source].member, "bytes", x_bytes * self.network.scale)
        return self.network.transfer(x_bytes, source, target, arrived)

    def blank(self, like: Tensor) -> Tensor:
        """Return memory for one message, which need not be copied."""
        made = torch.empty_like(like)
        self._blanks[id(made)] = made  # kept, so that no other tensor gets its identity
        return made

    def owned(self, x: Tensor) -> Tensor:
        """Return ``x`` if `blank` returned it, else a copy."""
        return x.clone() if self._blanks.pop(id(x), None) is None else x

    def learner_seconds(self, x_bytes: float) -> float:
        """Return the seconds that an operation costs the learner itself."""
        if self.network.paused:
            return 0.0
        return self.cluster.operation_seconds + x_bytes * self.network.scale / self.cluster.copy_bandwidth

    def count_collective(self, operation: str, sizes: Sequence[int], members: Sequence[int]) -> None:
        """Count the bytes that each member of a collective sends by the ring algorithm."""
        size = len(members)
        share = {"mean": 2 * (size - 1) / size, "gather": size - 1, "broadcast": 1.0 if size > 1 else 0.0}[operation]
        for member, x_bytes in zip(members, sizes, strict=True):
            self.record.add(self.ranks[member].member, "bytes", x_bytes * self.network.scale * share)

    def log_event(self, event: str, rank: int, source: int) -> None:
        """Log an event when it takes effect, if a log is kept."""
        if self.log is not None:
            self.log.append((event, rank, source))


class SimulatedRuntime:
    """One simulated learner's runtime."""

    clock: Clock = "virtual"

    def __init__(self, sim: Simulation, rank: int) -> None:
        self.sim, self.initial_rank, self.record = sim, rank, sim.record
        self.initial_size = len(sim.ranks)
        self.elastic = sim.cluster.elastic
        self.durations = sim.cluster.durations(rank - sim.servers, sim.seed)
        self._generation = -1

    def now(self) -> float:
        """Return virtual seconds."""
        return self.sim.loop.now

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Wait for all ranks that are alive."""
        membership = await self.sim.rendezvous(self.initial_rank, learner, report, make_plan)
        self._generation = membership.generation
        return membership

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Serve requests from now on."""
        rank = self.sim.ranks[self.initial_rank]
        if rank.serving.done:
            rank.serving = not_serving()
        self.sim.loop.set_result(rank.serving, (learner, strategy))

    async def stop_serving(self, learner: Learner) -> None:
        """Do nothing: no request is under way."""

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a common counter; this takes no virtual time."""
        if self.sim.ended_early or self._generation != self.sim.generation:
            raise LearnerLost(self.sim.end_reason)
        future: VirtualFuture[int] = VirtualFuture(key)
        isolated = self.sim.network.isolated_for(self.initial_rank)
        if isolated:
            self.sim.loop.call_later(isolated, lambda: self.sim.loop.set_result(future, self._add(key, amount)))
        else:
            future.value, future.done = self._add(key, amount), True
        return future

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let virtual time pass."""
        return self.sim.loop.sleep(seconds)

    def _add(self, key: str, amount: int) -> int:
        before = self.sim.counts.get(key, 0)
        self.sim.counts[key] = before + amount
        return before

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Compute the gradient, then let its virtual time pass."""
        loop, begin = self.sim.loop, self.sim.loop.now
        work.run(None)
        if not learner.frames:
            for part in work.parts:
                work.ready(part)
            return
        rank = self.sim.ranks[self.initial_rank]
        seconds, rank.pending_seconds = self.durations(begin, learner.frames) + rank.pending_seconds, 0.0
        if work.parts:
            await loop.sleep(seconds * FORWARD)
            total = sum(part.stop - part.start for part in work.parts)
            for part in work.parts:
                await loop.sleep(seconds * (1 - FORWARD) * (part.stop - part.start) / total)
                work.ready(part)
        else:
            await loop.sleep(seconds)
        self.record.span("compute", rank.member, begin, loop.now, frames=learner.frames)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Refuse: one loop runs the coroutines of all learners in turn."""
        raise SettingsError("a simulated learner runs in roundelay.runtimes.simulator.simulation.simulate")

    def computing(self, learner: Learner) -> AbstractContextManager[Callable[[], AbstractContextManager[object]]]:
        """Refuse: a user loop cannot wait while virtual time passes."""
        raise SettingsError("roundelay.join runs on processes; to simulate, write a Task and use roundelay train")

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Record that other learners also have these minibatches."""
        self.sim.mark_safe(self.initial_rank, list(numbers))

    def has_newcomers(self, key: str = "") -> bool:
        """Return whether a newcomer is waiting."""
        return self.sim.has_newcomers(key)

    def pause_clock(self, *, paused: bool) -> None:
        """Let messages cost no time while learners evaluate or save."""
        self.sim.network.paused = paused

    def capture(self) -> dict[str, Any]:
        """Return the virtual time and the state of gradients' durations; on the first rank also the cluster's state."""
        state = {"now": self.sim.loop.now, "durations": self.durations.capture()}
        return state | ({"cluster": self.sim.capture()} if self.initial_rank == self.sim.alive[0] else {})

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `capture` returned."""
        self.sim.loop.jump(state["now"])
        if "durations" in state:
            self.durations.restore(state["durations"])
        if "cluster" in state:
            self.sim.restore(state["cluster"])


@dataclass
class SimulationOutcome(Generic[TraineeT]):
    """The result of a simulation."""

    consensus: Tensor
    seconds: float
    trainings: list[TraineeT] = field(default_factory=list)
    """One per rank; of a restarted rank the last."""
    finished: list[TraineeT] = field(default_factory=list)
    """Those that ran to their end."""
    fired: list[AnyFault] = field(default_factory=list)
    """The faults that have happened."""
    record: Record | None = None


def simulate(
    make: Callable[[SimulatedRuntime], TraineeT],
    cluster: Cluster,
    *,
    learners: int,
    servers: int = 0,
    seed: int = 0,
    record: Record | None = None,
    shuffle: int | None = None,
) -> SimulationOutcome[TraineeT]:
    """Train ``learners`` learners in this process, in virtual time; ``make`` makes the training of one."""
    sim = Simulation(cluster, learners=learners, servers=servers, seed=seed, record=record, shuffle=shuffle)
    return run_simulation(sim, make)


def replay(
    make: Callable[[SimulatedRuntime, ReplayOrder], TraineeT],
    cluster: Cluster,
    orders: Sequence[Sequence[str]],
    *,
    servers: int = 0,
    record: Record | None = None,
) -> SimulationOutcome[TraineeT]:
    """Repeat a recorded run: each rank follows its recorded order of events, given by rank."""
    sim = Simulation(cluster, learners=len(orders) - servers, servers=servers, record=record)
    for rank, tokens in enumerate(orders):
        sim.orders[rank] = ReplayOrder(sim.loop, sim.ranks[rank].member, tokens)
    return run_simulation(sim, lambda runtime: make(runtime, sim.orders[runtime.initial_rank]))


def run_simulation(sim: Simulation, make: Callable[[SimulatedRuntime], TraineeT]) -> SimulationOutcome[TraineeT]:
    """Run all ranks of ``sim`` to their end."""
    trainings: dict[int, TraineeT] = {}

    def begin(rank: int) -> None:
        training = trainings[rank] = make(SimulatedRuntime(sim, rank))
        if sim.cluster.model_bytes is not None:
            sim.network.scale = sim.cluster.model_bytes / training.learner.weights.nbytes
        sim.start(rank, training.run())

    sim.restart = begin
    for rank in range(sim.learners + sim.servers):
        begin(rank)
    sim.run()
    finished = [rank for rank, task in sorted(sim.tasks.items()) if task.end.done]
    if not finished:
        raise LearnerLost("every learner was lost")
    sim.record.close(sim.ended)
    return SimulationOutcome(
        sim.tasks[finished[0]].end.value,
        sim.ended,
        [trainings[rank] for rank in sorted(trainings)],
        [trainings[rank] for rank in finished],
        sim.fired,
        sim.record,
    )
