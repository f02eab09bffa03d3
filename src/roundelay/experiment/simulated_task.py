"""Train any `Task` object on a simulated cluster, without settings and without a folder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from roundelay.experiment.run_observer import Evaluated, ObservedRecord, RunObserver
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator import simulation
from roundelay.strategy import Strategy
from roundelay.task import Schedule, Scores, Task
from roundelay.training.budget import Budget
from roundelay.training.loop import Job


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a task on a simulated cluster."""

    model: nn.Module
    """The task's module with the consensus weights."""
    scores: Scores
    """Of the last evaluation."""
    seconds: float
    """In virtual time."""
    evaluations: tuple[Evaluated, ...]
    totals: dict[str, dict[str, float]]
    """By learner: seconds by what they were spent on, bytes sent, and so on."""


def simulate(
    task: Task,
    strategy: Strategy,
    *,
    learners: int = 1,
    cluster: Cluster | None = None,
    epochs: float = 1.0,
    minibatches: int | None = None,
    evaluate_every: int | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    schedule: Schedule | None = None,
    seed: int = 0,
) -> SimulatedRun:
    """Train ``task`` by ``strategy`` on ``learners`` simulated learners; the same call gives the same result.

    The budget is ``epochs``, or ``minibatches`` of all learners together.  By default the optimizer is SGD at 0.1.
    """
    strategy.check(learners)
    total = minibatches if minibatches is not None else round(epochs * task.minibatches_per_epoch)
    job = Job(task, strategy, Budget(task.minibatches_per_epoch, total, evaluate_every), seed=seed)
    job.optimizer = optimizer or job.optimizer
    job.schedule = (lambda: copy.deepcopy(schedule)) if schedule is not None else None
    observer = _Collecting()
    record = ObservedRecord(None, observer, clock="virtual", spans=0)
    outcome = simulation.simulate(
        job.training, cluster or Cluster(), learners=learners, servers=strategy.servers, seed=seed, record=record
    )
    first = next(training for training in outcome.finished if not training.learner.is_server)
    first.learner.load(outcome.consensus)
    totals: dict[str, dict[str, Any]] = {member: dict(each) for member, each in record.totals.items()}
    return SimulatedRun(first.learner.module, first.scores, outcome.seconds, tuple(observer.evaluations), totals)


class _Collecting(RunObserver):
    def __init__(self) -> None:
        self.evaluations: list[Evaluated] = []

    def evaluated(self, evaluation: Evaluated) -> None:
        """Remember it."""
        self.evaluations.append(evaluation)
