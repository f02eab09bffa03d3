"""What a run would be, without running it: resolved settings, steps, memory, expected time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from roundelay.errors import RoundelayError
from roundelay.experiment.backends import On, RunOptions
from roundelay.experiment.run_training import Changes, configure
from roundelay.experiment.settings import Experiment
from roundelay.task import Task, seed_minibatch

TRIED = 3  # minibatches, of which the first is not timed
FORWARD = 1 / 3  # of a gradient's time, for a held-out minibatch


@dataclass(frozen=True)
class DryRun:
    """What a run would be; numbers are None if the data are not at hand."""

    settings: dict[str, Any]
    """All of them, resolved; those of the file if they cannot be resolved without data."""
    minibatches: int | None = None
    epochs: float | None = None
    steps: int | None = None
    """Of each learner, if all are equally fast."""
    parameters: int | None = None
    memory_bytes: float | None = None
    """Of one learner: weights, gradient, optimizer's state and one snapshot; activations come on top."""
    gradient_seconds: float | None = None
    """Of one minibatch, measured here."""
    seconds: float | None = None
    """Of the whole run on this machine, without start and communication."""
    unknown: str = ""
    """Why numbers are missing."""


def dry_run(
    experiment: Path | Mapping[str, Any], changes: Changes, *, on: On = "processes", options: RunOptions | None = None
) -> DryRun:
    """Resolve an experiment, train a few minibatches in this process to measure them, and write nothing."""
    settings = configure(experiment, changes, on=on, options=options)
    plain = settings.plain()
    try:
        task = settings.make_task()
        budget = settings.make_budget(task)
    except RoundelayError as error:
        if settings.task.get("data"):
            raise
        return DryRun(plain, unknown=f"steps, memory and time; {error}")
    module = task.make_module()
    gradient, memory = _try_out(settings, task, module)
    learners = settings.learners
    at_once = 1 if on == "simulator" else min(learners, len(os.sched_getaffinity(0)))
    evaluations = budget.total / (budget.evaluate_every or budget.minibatches_per_epoch)
    held_out = evaluations * task.held_out_minibatches * FORWARD
    return DryRun(
        plain,
        budget.total,
        round(budget.total / budget.minibatches_per_epoch, 3),
        -(-budget.total // learners),
        sum(parameter.numel() for parameter in module.parameters()),
        memory,
        gradient,
        gradient * (budget.total + held_out) / at_once,
    )


def _try_out(settings: Experiment, task: Task, module: nn.Module) -> tuple[float, float]:
    """Train a few minibatches; return the seconds of one, and the bytes that a learner keeps."""
    optimizer = settings.optimizer_of(task)(module)
    module.train()
    seconds = []
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        for index in range(min(TRIED, task.minibatches_per_epoch)):
            seed_minibatch(settings.seed, 0, index)
            begin = time.perf_counter()
            optimizer.zero_grad()
            task.loss(module, task.load(0, index)).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(before)
    weights = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    return min(seconds[1:] or seconds), 3.0 * weights + sum(state.nbytes for state in states)
