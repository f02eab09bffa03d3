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
from roundelay.training.checkpoint_files import Saver
from roundelay.training.event_order import Order, RecordedOrder
from roundelay.training.fingerprint import fingerprint
from roundelay.training.loop import Training
from roundelay.training.model_selection import ModelSelector
from roundelay.training.observer import Evaluation, Step

__all__ = ["ENTRY", "Attempt", "LearnerJob", "Result", "Tensors", "learn", "learn_here", "save", "start_weights"]

ENTRY = "roundelay.experiment.learner_entry:learn"
FLUSH_SECONDS = 0.5
Tensors = dict[str, Tensor]
Result = dict[str, Any]


class LearnerJob(TypedDict):
    """What a launcher sends to every learner, as JSON."""

    experiment: dict[str, Any]
    """All settings, resolved: nothing is read from a file or derived again."""
    folder: str
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
    return learn_here(runtime, experiment, job, start_weights(experiment, folder))


def start_weights(experiment: Experiment, folder: Path | None) -> Tensors | None:
    """Return the weights of an earlier pre-training, if the experiment asks for them."""
    if experiment.pretrain is None:
        return None
    from roundelay.experiment.pretraining.layer_stages import pretrained

    return pretrained(experiment, folder)


def learn_here(runtime: Runtime, experiment: Experiment, job: LearnerJob, start: Tensors | None) -> Result:
    """Train one learner from the weights ``start``, if there are any, as one rank of several."""
    folder = Path(job["folder"])
    attempt = Attempt(experiment, folder, lr_factor=job["lr_factor"], start=start)
    order = RecordedOrder() if experiment.record.order else None
    attempt.job.fingerprint = fingerprint(job["experiment"])
    training = attempt.training(runtime, order)
    training.observers.append(_Flushing(runtime))
    try:
        consensus = runtime.run(training.run())
    finally:
        attempt.close()
    if order is not None:
        order.save(folder / f"order-{training.member.world.rank}.txt")
    if training.learner.index or training.learner.is_server:
        return {"scores": training.scores, "seconds": runtime.now(), "clock": runtime.clock}
    return attempt.finish(training, consensus, seconds=runtime.now())


class Attempt:
    """One attempt at a run in this process: what its learners train by, and which model it leaves."""

    def __init__(
        self, experiment: Experiment, folder: Path | None, *, lr_factor: float = 1.0, start: Tensors | None = None
    ) -> None:
        self.folder = folder
        self.job, self.selector = experiment.job(), ModelSelector(experiment.keep)
        self.job.start, self.job.lr_factor = start, lr_factor
        self.job.saver = Saver(folder, experiment.checkpoint) if folder is not None else None

    def training(self, runtime: Runtime, order: Order | None = None) -> Training:
        """Make one learner's training."""
        training = self.job.training(runtime, order)
        self.selector.watch(training)
        return training

    def close(self) -> None:
        """Wait for what is being saved."""
        if self.job.saver is not None:
            self.job.saver.close()

    def finish(self, training: Training, consensus: Tensor, *, seconds: float) -> Result:
        """Choose the model, as the first learner, and save it if there is a folder; return scores and seconds."""
        result: Result = {"scores": training.scores, "seconds": seconds, "clock": training.member.runtime.clock}
        training.learner.load(self.selector.choose(training, consensus, result))
        if self.folder is not None:
            save(RunFolder(self.folder), training, result)
        return result


def save(folder: RunFolder, training: Training, result: Result) -> None:
    """Write the model that a learner has loaded, with its scores."""
    scores = {name: value for name, value in result["scores"].items() if math.isfinite(value)}
    about = {"strategy": type(training.strategy).__name__, "scores": scores}
    training.task.save_assets(folder.path)
    folder.save_model(training.learner.module, about | ({"kept": result["kept"]} if "kept" in result else {}))


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
