"""A cluster in virtual time with real gradients: many learners in this one process."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from roundelay.errors import LearnerLost, SettingsError
from roundelay.learner import Learner
from roundelay.planning.placeholder_compression import without_arithmetic
from roundelay.planning.placeholders import StandInLearner, StandInTask, TotalsRecord, mean_of_stand_ins
from roundelay.runs.record import Record
from roundelay.runtime import Clock, GradientWork, MakePlan, Membership
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop, VirtualTask
from roundelay.runtimes.simulator.network import SimulatedNetwork
from roundelay.runtimes.simulator.recorded_order import ReplayOrder
from roundelay.runtimes.simulator.simulated_communicator import SimulatedCommunicator, SimulatedGroup, SimulatedRank
from roundelay.runtimes.simulator.simulated_membership import Disturbance, SimulatedMembership
from roundelay.runtimes.simulator.simulated_state import capture, restore
from roundelay.runtimes.weighted_mean import mean_of
from roundelay.strategy import Strategy
from roundelay.training.budget import Budget
from roundelay.training.loop import Training

__all__ = ["SimulatedRuntime", "Simulation", "SimulationOutcome", "replay", "simulate", "time_only"]

T = TypeVar("T")
FORWARD = 1 / 3  # of a gradient's time, the backward pass being about twice the forward pass


class Simulation(SimulatedMembership):
    """The cluster that simulated learners share: its kernel, network, membership and record."""

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
        seats = [
            SimulatedRank(member=f"server {rank}" if rank < servers else f"learner {rank - servers}")
            for rank in range(size)
        ]
        record = record if record is not None else Record(None, clock="virtual")
        super().__init__(VirtualLoop(shuffle), cluster, seats, servers, record)
        self.learners, self.seed = learners, seed
        self.network = SimulatedNetwork(self.kernel, cluster, cluster.places(learners, servers))
        self.counts: dict[str, int] = {}
        self.handles = cluster.handles
        self.mean_of: Callable[[Sequence[Tensor], Sequence[float]], Tensor | None] = mean_of
        self.log: list[tuple[str, int, int]] | None = None
        self.orders: dict[int, ReplayOrder] = {}  # of seats that keep to a recorded order

    def start(self, seat: int, work: Coroutine[Any, Any, Any]) -> VirtualTask[Any]:
        """Let a learner's training begin when the simulation runs."""
        task = self.kernel.spawn(work, self.seats[seat].member)
        self.watch_end(seat, task)
        return task

    def run(self) -> None:
        """Let everything happen."""
        self.schedule()
        self.kernel.run()

    def connect(self, everyone: list[Learner]) -> None:
        """Give the members of a new epoch, in rank order, their communicators."""
        group = SimulatedGroup(tuple(self.alive))
        for rank, learner in enumerate(everyone):
            learner.comm = SimulatedCommunicator(self, group, rank)

    # -- what a communicator needs ------------------------------------------------------------------------------

    def send(self, x_bytes: int, source: int, target: int, arrived: Callable[[], None]) -> float:
        """Charge the network for a message."""
        self.record.add(self.seats[source].member, "bytes", x_bytes * self.network.scale)
        return self.network.transfer(x_bytes, source, target, arrived)

    def handling(self, x_bytes: float) -> float:
        """Return the seconds that a learner is busy itself with a verb."""
        if self.network.still:
            return 0.0
        return self.cluster.verb_seconds + x_bytes * self.network.scale / self.cluster.copy_bandwidth

    def count_collective(self, verb: str, sizes: Sequence[int], members: Sequence[int]) -> None:
        """Count what a collective makes each member send, by the ring algorithm."""
        size = len(members)
        share = {"mean": 2 * (size - 1) / size, "gather": size - 1, "broadcast": 1.0 if size > 1 else 0.0}[verb]
        for member, x_bytes in zip(members, sizes, strict=True):
            self.record.add(self.seats[member].member, "bytes", x_bytes * self.network.scale * share)

    def logged(self, what: str, seat: int, source: int) -> None:
        """Log an event in the order in which it took effect, where a log is kept."""
        if self.log is not None:
            self.log.append((what, seat, source))


class SimulatedRuntime:
    """One simulated learner's runtime."""

    clock: Clock = "virtual"

    def __init__(self, sim: Simulation, seat: int) -> None:
        self.sim, self.initial_rank, self.record = sim, seat, sim.record
        self.initial_size = len(sim.seats)
        self.elastic = sim.cluster.lossy
        self.durations = sim.cluster.durations(seat - sim.servers, sim.seed)
        self._epoch = -1

    def now(self) -> float:
        """Return virtual seconds."""
        return self.sim.kernel.now

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Wait for all who are alive."""
        view = await self.sim.arrive(self.initial_rank, learner, report, make_plan)
        self._epoch = view.generation
        return view

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Let requests in."""
        seat = self.sim.seats[self.initial_rank]
        if seat.opened.done:
            seat.opened = VirtualFuture("a learner that serves")
        self.sim.kernel.happen(seat.opened, (learner, strategy))

    async def stop_serving(self, learner: Learner) -> None:
        """Nothing is to be done: no request is under way."""

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a common number; asking costs no virtual time."""
        if self.sim.over or self._epoch != self.sim.epoch:
            raise LearnerLost(self.sim.reason)
        event: VirtualFuture[int] = VirtualFuture(key)
        cut = self.sim.network.cut_for(self.initial_rank)
        if cut:
            self.sim.kernel.after(cut, lambda: self._count(event, key, amount))
        else:
            event.value, event.done = self._add(key, amount), True
        return event

    def _add(self, key: str, amount: int) -> int:
        before = self.sim.counts.get(key, 0)
        self.sim.counts[key] = before + amount
        return before

    def _count(self, event: VirtualFuture[int], key: str, amount: int) -> None:
        self.sim.kernel.happen(event, self._add(key, amount))

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Take the gradient, and let its virtual time pass."""
        kernel, begin = self.sim.kernel, self.sim.kernel.now
        work.run(None)
        if not learner.frames:
            for part in work.parts:
                work.ready(part)
            return
        seat = self.sim.seats[self.initial_rank]
        seconds, seat.owes = self.durations(begin, learner.frames) + seat.owes, 0.0
        if work.parts:
            await kernel.sleep(seconds * FORWARD)
            total = sum(part.stop - part.start for part in work.parts)
            for part in work.parts:
                await kernel.sleep(seconds * (1 - FORWARD) * (part.stop - part.start) / total)
                work.ready(part)
        else:
            await kernel.sleep(seconds)
        self.record.span("compute", seat.member, begin, kernel.now, frames=learner.frames)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Refuse: the kernel runs all learners' coroutines in turn."""
        raise SettingsError("a simulated learner runs in roundelay.runtimes.simulator.simulation.simulate")

    def computing(self, learner: Learner) -> AbstractContextManager[Callable[[], AbstractContextManager[object]]]:
        """Refuse: a loop of the user's own cannot stand still while virtual time passes."""
        raise SettingsError("roundelay.join runs on processes; to simulate, write a Task and use roundelay train")

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Put down what is surely trained."""
        self.sim.trained(self.initial_rank, list(numbers))

    def has_newcomers(self, key: str = "") -> bool:
        """Tell whether somebody waits to join."""
        return self.sim.newcomers(key)

    def pause_clock(self, *, paused: bool) -> None:
        """Let messages cost nothing while learners meet."""
        self.sim.network.still = paused

    def capture(self) -> dict[str, Any]:
        """Return the virtual time and how long gradients will take; from the first one also the cluster's state."""
        state = {"now": self.sim.kernel.now, "durations": self.durations.capture()}
        return state | ({"cluster": capture(self.sim)} if self.initial_rank == self.sim.alive[0] else {})

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.sim.kernel.jump(state["now"])
        if "durations" in state:
            self.durations.restore(state["durations"])
        if "cluster" in state:
            restore(self.sim, state["cluster"])


@dataclass
class SimulationOutcome:
    """What a simulation came to."""

    consensus: Tensor
    seconds: float
    trainings: list[Training] = field(default_factory=list)
    """Of every rank; of one that was started again the last."""
    finished: list[Training] = field(default_factory=list)
    """Those of them that ran to their end."""
    fired: list[Disturbance] = field(default_factory=list)
    """What has befallen learners."""
    record: Record | None = None


def simulate(
    make: Callable[[SimulatedRuntime], Training],
    cluster: Cluster,
    *,
    learners: int,
    servers: int = 0,
    seed: int = 0,
    record: Record | None = None,
    shuffle: int | None = None,
) -> SimulationOutcome:
    """Train ``learners`` learners in this process, in virtual time; ``make`` makes the training of one."""
    sim = Simulation(cluster, learners=learners, servers=servers, seed=seed, record=record, shuffle=shuffle)
    return _run(sim, make)


def time_only(
    strategy: Strategy,
    cluster: Cluster,
    *,
    learners: int,
    steps: int,
    frames: int = 256,
    seed: int = 0,
    record: TotalsRecord | None = None,
) -> SimulationOutcome:
    """Let ``strategy`` run on ``learners`` learners for what it costs in time, without a model.

    ``cluster.model_bytes`` says how large the model would be; each learner takes about ``steps`` steps.
    """
    strategy, tally = without_arithmetic(strategy), record if record is not None else TotalsRecord()
    sim = Simulation(cluster, learners=learners, servers=strategy.servers, seed=seed, record=tally)
    sim.mean_of, tally.links = mean_of_stand_ins, sim.network.used
    budget, parameters = Budget(learners * steps, learners * steps), int((cluster.model_bytes or 4e7) / 4)
    task = StandInTask(budget.minibatches_per_epoch, frames)

    def make(runtime: SimulatedRuntime) -> Training:
        learner = StandInLearner(parameters)
        learner.nominal_frames = frames
        return Training(learner, strategy, runtime, task=task, budget=budget)

    collects = gc.isenabled()
    gc.disable()  # millions of small things, hardly any in cycles
    try:
        return _run(sim, make)
    finally:
        if collects:
            gc.enable()


def replay(
    make: Callable[[SimulatedRuntime, ReplayOrder], Training],
    cluster: Cluster,
    orders: Sequence[Sequence[str]],
    *,
    servers: int = 0,
    record: Record | None = None,
) -> SimulationOutcome:
    """Train again as learners did elsewhere, each in the order that it wrote down, by rank."""
    sim = Simulation(cluster, learners=len(orders) - servers, servers=servers, record=record)
    for seat, tokens in enumerate(orders):
        sim.orders[seat] = ReplayOrder(sim.kernel, sim.seats[seat].member, tokens)
    return _run(sim, lambda runtime: make(runtime, sim.orders[runtime.initial_rank]))


def _run(sim: Simulation, make: Callable[[SimulatedRuntime], Training]) -> SimulationOutcome:
    trainings: dict[int, Training] = {}

    def begin(seat: int) -> None:
        training = trainings[seat] = make(SimulatedRuntime(sim, seat))
        if sim.cluster.model_bytes is not None:
            sim.network.scale = sim.cluster.model_bytes / training.learner.weights.nbytes
        sim.start(seat, training.run())

    sim.restart = begin
    for seat in range(sim.learners + sim.servers):
        begin(seat)
    sim.run()
    finished = [seat for seat, task in sorted(sim.tasks.items()) if task.end.done]
    if not finished:
        raise LearnerLost("every learner was lost")
    sim.record.close(sim.ended)
    return SimulationOutcome(
        sim.tasks[finished[0]].end.value,
        sim.ended,
        [trainings[seat] for seat in sorted(trainings)],
        [trainings[seat] for seat in finished],
        sim.fired,
        sim.record,
    )
