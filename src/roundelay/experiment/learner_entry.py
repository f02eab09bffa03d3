"""What every process that trains does: build a learner of the launcher's job, train, and leave the model."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from roundelay.experiment.settings import Experiment
from roundelay.learner import Learner
from roundelay.runs.run_folder import RunFolder
from roundelay.runtime import Runtime
from roundelay.training.event_order import RecordedOrder
from roundelay.training.loop import Job, Training
from roundelay.training.observer import Evaluation, Step

ENTRY = "roundelay.experiment.learner_entry:learn"
FLUSH_SECONDS = 0.5
Tensors = dict[str, Tensor]
Result = dict[str, Any]


class LearnerJob(TypedDict):
    """What a launcher sends to every learner, as JSON."""

    experiment: dict[str, Any]
    """All settings, resolved: nothing is read from a file or derived again."""
    folder: str
    several_hosts: bool
    """Whether learners may run on several hosts, so that code, data and settings have to be compared."""
    lr_factor: float
    """A factor of the learning rate on top of the checkpoint's, after a rollback."""
    stage: int | None
    """Which stage of pre-training this is, from 0; None: the run itself."""


def learn(runtime: Runtime, job: LearnerJob) -> Result:
    """Train one learner in a process of its own; the first learner saves the model."""
    experiment, folder = Experiment.of(job["experiment"]), Path(job["folder"])
    torch.set_num_threads(experiment.threads)
    if job["stage"] is not None:
        from roundelay.experiment.pretraining.layer_stages import Pretraining

        return Pretraining.before(job["stage"], experiment, folder).train(job["stage"], runtime, folder)
    start = start_weights(experiment, folder)
    attempt = experiment.job().attempt(folder, lr_factor=job["lr_factor"], start=start)
    return learn_here(runtime, experiment, attempt, folder, compare=job["several_hosts"])


def start_weights(experiment: Experiment, folder: Path | None) -> Tensors | None:
    """Return the weights of an earlier pre-training, if the experiment asks for them."""
    if experiment.pretrain is None:
        return None
    from roundelay.experiment.pretraining.layer_stages import pretrained

    return pretrained(experiment, folder)


def learn_here(runtime: Runtime, experiment: Experiment, job: Job, folder: Path, *, compare: bool) -> Result:
    """Train one learner as one rank of several; ``compare`` whether all have the same code, data and settings."""
    if compare:
        from roundelay.training.fingerprint import fingerprint

        job.fingerprint = fingerprint(experiment.for_learners())
    order = RecordedOrder() if experiment.record.order else None
    training = job.training(runtime, order)
    training.observers.append(_Flushing(runtime))
    try:
        consensus = runtime.run(training.run())
    finally:
        job.close()
    if order is not None:
        order.save(folder / f"order-{training.member.world.rank}.txt")
    if training.learner.index or training.learner.is_server:
        return {"scores": training.scores, "seconds": runtime.now(), "clock": runtime.clock}
    return finish(training, consensus, folder, seconds=runtime.now())


def finish(training: Training, consensus: Tensor, folder: Path | None, *, seconds: float) -> Result:
    """Choose the model, as the first learner, and save it if there is a folder; return scores and seconds."""
    learner, selector = training.learner, training.job.selector
    result: Result = {"scores": training.scores, "seconds": seconds, "clock": training.member.runtime.clock}
    if selector is not None:
        consensus = selector.choose(learner, training.task, consensus, result)
    learner.load(consensus)
    if folder is not None:
        scores = {name: value for name, value in result["scores"].items() if math.isfinite(value)}
        about = {"strategy": type(training.strategy).__name__, "scores": scores}
        training.task.save_assets(folder)
        RunFolder(folder).save_model(learner.module, about | ({"kept": result["kept"]} if "kept" in result else {}))
    return result


class _Flushing:
    """Keeps the record's file up to date, for those who follow it."""

    def __init__(self, runtime: Runtime) -> None:
        self._record, self._last = runtime.record, 0.0

    def stepped(self, learner: Learner, step: Step) -> None:
        """Flush the record, if it was long ago."""
        if time.monotonic() > self._last + FLUSH_SECONDS:
            self._flush()

    def evaluated(self, learner: Learner, evaluation: Evaluation) -> None:
        """Flush the record."""
        self._flush()

    def _flush(self) -> None:
        self._last = time.monotonic()
        self._record.flush()
