"""Every registered strategy with settings under which something happens in a short run; and one way to run them.

`run_simulated` is what a runtime has to offer to take part in the contract's tests: a job and a number of learners in,
a `Ran` out.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, SimulationOutcome, simulate
from roundelay.strategies import ADPSGD, ASGD, BMUF, EASGD, STRATEGIES, Averaging, Hierarchical, Synchronous
from roundelay.strategy import Strategy
from roundelay.training.loop import Job, Training

SETTINGS: dict[str, dict[str, Any]] = {
    "asgd-updates": {"period": 3, "rate": 1.0},
    "averaging": {"period": 3},
    "bmuf": {"block": 3},
    "diloco": {"block": 3},
    "easgd": {"period": 2},
    "easgd-synchronous": {"period": 2},
    "gossip-pga": {"period": 3},
    "slowmo": {"period": 3},
}
"""What differs from the defaults."""

CASES: dict[str, Callable[[], Strategy]] = {
    **{name: functools.partial(kind, **SETTINGS.get(name, {})) for name, kind in STRATEGIES.items()},
    "adpsgd complete": lambda: ADPSGD(topology="complete"),
    "asgd with shards and a barrier": lambda: ASGD(servers=2, staleness_bound=2, damping=1.0),
    "averaging in a butterfly": lambda: Averaging(period=2, topology="butterfly"),
    "averaging along a hopping ring": lambda: Averaging(period=2, topology="hopping-ring"),
    "bmuf, classical": lambda: BMUF(block=3, form="classical"),
    "eamsgd": lambda: EASGD(period=2, momentum=0.5),
    "nodes by asgd": lambda: Hierarchical(outer=ASGD(staleness_bound=1), learners_per_node=3),
    "nodes by bmuf": lambda: Hierarchical(outer=BMUF(block=2)),
    "synchronous in parts": lambda: Synchronous(bucket_bytes=128),
}
"""By a name for the test."""


@dataclass
class Ran:
    """What a run came to, on any runtime."""

    consensus: list[Tensor]
    """As each rank has it, servers first."""
    weights: list[Tensor]
    """Of each rank in the end."""
    events: list[dict[str, Any]]
    """The record."""
    seconds: float
    outcome: SimulationOutcome[Training] | None = None

    @property
    def trained(self) -> list[int]:
        """The minibatches, sorted."""
        return sorted(event["minibatch"] for event in self.events if event["event"] == "step")

    @property
    def loss(self) -> float:
        """The last evaluation."""
        return float([event["loss"] for event in self.events if event["event"] == "evaluate"][-1])


def run_simulated(job: Job, learners: int, cluster: Cluster | None = None, **more: Any) -> Ran:
    """Run ``job`` in the simulator."""
    file, ends = io.StringIO(), dict[int, Tensor]()

    def make(runtime: SimulatedRuntime) -> Training:
        training = job.training(runtime)
        run = training.run

        async def finished() -> Tensor:
            ends[runtime.initial_rank] = await run()
            return ends[runtime.initial_rank]

        training.run = finished  # type: ignore[method-assign]  # to see what every rank returns
        return training

    record = Record(file, clock="virtual")
    servers = job.strategy.servers
    outcome = simulate(make, cluster or Cluster(), learners=learners, servers=servers, record=record, **more)
    events = [json.loads(line) for line in file.getvalue().splitlines()]
    consensus = [ends[seat] for seat in sorted(ends)]
    return Ran(
        consensus, [training.learner.weights for training in outcome.trainings], events, outcome.seconds, outcome
    )


def fitting(strategy: Strategy, learners: int) -> int:
    """Return the number of learners, ``learners`` or the next below it, that the strategy's settings fit."""
    while learners > 1:
        try:
            strategy.check(learners)
        except SettingsError:
            learners -= 1
        else:
            break
    return learners
