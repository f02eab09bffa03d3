"""A task that one can work by hand: each minibatch pulls the weights towards a target of its own.

The gradient of minibatch k is w - c_k, so that at a rate of one half a step goes half of the way to the target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster, Compute
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, SimulationOutcome, simulate
from roundelay.strategy import Strategy
from roundelay.task import Scores, Task
from roundelay.training.budget import Budget
from roundelay.training.loop import Job, Training
from roundelay.training.observer import Step
from tiny_jobs import Watching, sgd


class Point(nn.Module):
    """Weights and nothing else, in double precision."""

    def __init__(self, start: float, size: int, tensors: int) -> None:
        super().__init__()
        self.w = nn.ParameterList(torch.full((size,), start, dtype=torch.float64) for _ in range(tensors))


@dataclass
class Quadratic(Task):
    """Minibatch k has the loss |w - c_k|^2 / 2."""

    targets: Sequence[float]
    start: float = 0.0
    size: int = 1
    tensors: int = 1
    counts: Sequence[int] = ()
    """Frames of each minibatch; one each by default."""

    def __post_init__(self) -> None:
        self.minibatches_per_epoch, self.nominal_frames, self.held_out_minibatches = len(self.targets), 1, 1

    def make_module(self) -> nn.Module:
        return Point(self.start, self.size, self.tensors)

    def frames(self, epoch: int, index: int) -> int:
        return self.counts[index] if self.counts else 1

    def load(self, epoch: int, index: int) -> float:
        return self.targets[index]

    def loss(self, module: nn.Module, batch: float) -> Tensor:
        assert isinstance(module, Point)
        return torch.stack([0.5 * (w - batch).square().sum() for w in module.w]).sum()

    def score(self, module: nn.Module, index: int) -> Scores:
        assert isinstance(module, Point)
        return {"loss": float(0.5 * module.w[0].detach().square().sum()), "frames": 1.0}


@dataclass
class Walk:
    """The path of every learner's first weight."""

    outcome: SimulationOutcome[Training]
    weights: dict[int, list[float]] = field(default_factory=dict)

    @property
    def consensus(self) -> float:
        return float(self.outcome.consensus[0])

    def strategy(self, rank: int) -> Any:
        return self.outcome.trainings[rank].strategy


def walk(
    strategy: Strategy,
    targets: Sequence[float],
    learners: int,
    *,
    rate: float = 0.5,
    cluster: Cluster | None = None,
    slowness: Sequence[float] = (),
    watch: Callable[[Training], None] | None = None,
    **settings: Any,
) -> Walk:
    """Train on one epoch of ``targets`` in the simulator, and keep every learner's weights after each of its steps."""
    task = Quadratic(targets, **settings.pop("task", {}))
    budget = Budget(
        task.minibatches_per_epoch,
        settings.pop("minibatches", task.minibatches_per_epoch),
        **settings.pop("budget", {}),
    )
    job = Job(task, strategy, budget, settings.pop("optimizer", sgd(rate)), **settings)
    weights: dict[int, list[float]] = {}

    def make(runtime: SimulatedRuntime) -> Training:
        training = job.training(runtime)

        def stepped(learner: Learner, _: Step) -> None:
            weights.setdefault(learner.index, []).append(float(learner.weights[0]))
            if watch is not None:
                watch(training)

        training.observers.append(Watching(stepped))
        return training

    cluster = cluster or Cluster(compute=Compute(slowness=list(slowness)))
    return Walk(simulate(make, cluster, learners=learners, servers=strategy.servers), weights)


def scattered(strategy: Strategy, start: Callable[[Learner], Tensor | float]) -> Strategy:
    """Return ``strategy`` such that every learner starts somewhere else than the others."""
    kind = type(strategy)

    def setup(self: Strategy, learner: Learner) -> None:
        if not learner.is_server:
            learner.weights.copy_(torch.as_tensor(start(learner)).expand_as(learner.weights))
        kind.setup(self, learner)

    settings = {each.name: getattr(strategy, each.name) for each in dataclasses.fields(strategy) if each.init}  # type: ignore[arg-type]  # every strategy is a dataclass
    made: Strategy = type(f"Scattered{kind.__name__}", (kind,), {"setup": setup})(**settings)
    return made
