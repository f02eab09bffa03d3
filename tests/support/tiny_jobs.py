"""Small jobs for tests, and a short way to simulate them."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import SimulationOutcome, simulate
from roundelay.strategy import Strategy
from roundelay.tasks.tiny import Tiny
from roundelay.training.budget import Budget
from roundelay.training.loop import Job, Training
from roundelay.training.observer import Evaluation, Step


def sgd(lr: float = 0.05, momentum: float = 0.0, **more: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda module: torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum, **more)


def adamw(lr: float = 0.003) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda module: torch.optim.AdamW(module.parameters(), lr=lr)


def tiny_job(strategy: Strategy, *, minibatches: int = 60, **settings: Any) -> Job:
    """A job on a very small task; ``settings`` are the job's, or the task's in a dictionary ``task``."""
    task = Tiny(
        **{"frames_per_epoch": 320, "batch": 16, "hidden": [8], "classes": 5, "features": 6} | settings.pop("task", {})
    )
    budget = Budget(task.minibatches_per_epoch, minibatches, **settings.pop("budget", {}))
    return Job(task, strategy, budget, settings.pop("optimizer", sgd()), **settings)


def simulated(job: Job, learners: int, cluster: Cluster | None = None, **more: Any) -> SimulationOutcome[Training]:
    """Simulate ``job`` on ``learners`` learners."""
    return simulate(
        job.training, cluster or Cluster(), learners=learners, servers=job.strategy.servers, seed=job.seed, **more
    )


def recorded(
    strategy: Strategy, learners: int, cluster: Cluster | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Return the lines of the record of a simulated tiny job."""
    text = io.StringIO()
    simulated(tiny_job(strategy, **settings), learners, cluster, record=Record(text, clock="virtual"))
    return [json.loads(line) for line in text.getvalue().splitlines()]


def trained(lines: list[dict[str, Any]]) -> Counter[int]:
    """Return how often each minibatch was trained by these lines of a record."""
    return Counter(line["minibatch"] for line in lines if line["event"] == "step")


class Watching:
    """An observer that calls functions."""

    def __init__(
        self,
        stepped: Callable[[Learner, Step], object] | None = None,
        evaluated: Callable[[Learner, Evaluation], object] | None = None,
    ) -> None:
        self._stepped, self._evaluated = stepped, evaluated

    def stepped(self, learner: Learner, step: Step) -> None:
        if self._stepped is not None:
            self._stepped(learner, step)

    def evaluated(self, learner: Learner, evaluation: Evaluation) -> None:
        if self._evaluated is not None:
            self._evaluated(learner, evaluation)
