"""Simulate a strategy for its time only, without a model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roundelay.planning.placeholder_compression import without_arithmetic
from roundelay.planning.placeholders import PlaceholderLearner, PlaceholderTask, no_mean
from roundelay.runs.record import Kind, Record
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, Simulation, SimulationOutcome, run_simulation
from roundelay.strategy import Strategy
from roundelay.training.budget import Budget
from roundelay.training.loop import Job, Training
from roundelay.training.member import Member


@dataclass
class TotalsSnapshot:
    """The totals of a `TotalsRecord` after a certain number of steps."""

    time: float
    totals: dict[str, dict[str, float]]
    links: dict[str, list[tuple[float, float]]]


class TotalsRecord(Record):
    """A record of totals and of the times at which steps ended; it takes a snapshot after each of ``marks`` steps."""

    def __init__(self, marks: Sequence[int] = ()) -> None:
        super().__init__(None, clock="virtual")
        self.steps: list[float] = []
        self.members: list[str] = []  # the learner of each step
        self.snapshots: list[TotalsSnapshot] = []
        self.links: Callable[[], dict[str, list[tuple[float, float]]]] = dict
        self._marks = frozenset(marks)

    def write(self, event: str, member: str, time: float, **what: Any) -> None:
        """Count a step; ignore other events."""
        if event == "step":
            self.steps.append(time)
            self.members.append(member)
            if len(self.steps) in self._marks:
                totals = {member: dict(totals) for member, totals in self.totals.items()}
                self.snapshots.append(TotalsSnapshot(time, totals, self.links()))

    def span(self, kind: Kind, member: str, begin: float, end: float, **what: Any) -> None:
        """Add to the total time and to the count of this kind."""
        if end > begin:
            totals = self.totals[member]
            totals[kind] += end - begin
            totals[f"{kind} count"] += 1


def time_only(
    strategy: Strategy,
    cluster: Cluster,
    *,
    learners: int,
    steps: int,
    frames: int = 256,
    seed: int = 0,
    record: TotalsRecord | None = None,
) -> SimulationOutcome[Training]:
    """Run ``strategy`` on ``learners`` learners for its time only.

    ``cluster.model_bytes`` is the size of the model; each learner takes about ``steps`` steps.
    """
    strategy, totals = without_arithmetic(strategy), record if record is not None else TotalsRecord()
    sim = Simulation(cluster, learners=learners, servers=strategy.servers, seed=seed, record=totals)
    sim.mean_of, totals.links = no_mean, sim.network.used
    budget, parameters = Budget(learners * steps, learners * steps), int((cluster.model_bytes or 4e7) / 4)
    job = Job(PlaceholderTask(budget.minibatches_per_epoch, frames), strategy, budget)

    def make(runtime: SimulatedRuntime) -> Training:
        learner = PlaceholderLearner(parameters)
        learner.nominal_frames = frames
        return Training(Member(learner, strategy, runtime), job)

    collects = gc.isenabled()
    gc.disable()  # millions of small objects, hardly any in cycles
    try:
        return run_simulation(sim, make)
    finally:
        if collects:
            gc.enable()
