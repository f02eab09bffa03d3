"""Train an experiment on a runtime and leave a run's folder behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from roundelay.errors import CheckpointError
from roundelay.experiment.pretraining.layer_stages import pretrained, start_simulated
from roundelay.experiment.retry import run_with_retries
from roundelay.experiment.settings import Experiment
from roundelay.runs.chrome_trace import write_trace
from roundelay.runs.record import Record
from roundelay.runs.run_folder import RunFolder
from roundelay.runtime import Runtime
from roundelay.runtimes.fault_plan import FaultPlan
from roundelay.runtimes.simulator.simulation import replay, simulate
from roundelay.training.checkpoint_files import Saver
from roundelay.training.event_order import Order, RecordedOrder, read_order
from roundelay.training.fingerprint import fingerprint
from roundelay.training.job import Job
from roundelay.training.loop import Training
from roundelay.training.model_selection import ModelSelector

__all__ = ["describe", "replay_run", "train_learner", "train_simulated"]

Watch = Callable[[Training], None]
"""Is given every training before it begins, to hook itself to it."""


def describe(experiment: Experiment, job: Job, on: str) -> dict[str, Any]:
    """Say in numbers what is about to be trained."""
    batch = job.task.nominal_frames
    return {
        "on": on,
        "learners": experiment.learners,
        "servers": job.strategy.servers,
        "batch": batch,
        "global_batch": batch * experiment.learners,
        "minibatches": job.budget.total,
        "epochs": round(job.budget.total / job.budget.minibatches_per_epoch, 3),
        "seed": experiment.seed,
    }


def train_simulated(
    experiment: Experiment,
    folder: RunFolder | None,
    *,
    shuffle: int | None = None,
    watch: Watch | None = None,
    faults: FaultPlan | None = None,
) -> dict[str, Any]:
    """Train on the simulated cluster of the experiment; return the scores, the virtual seconds and the totals.

    Where ``folder`` has checkpoints, the run goes on from the newest.
    """
    torch.set_num_threads(experiment.threads)
    run = folder.path if folder is not None else None
    return run_with_retries(
        lambda lower: _simulate(experiment, folder, shuffle, watch, lower, faults or FaultPlan()), run, experiment.guard
    )


def _simulate(
    experiment: Experiment,
    folder: RunFolder | None,
    shuffle: int | None,
    watch: Watch | None,
    lower: float,
    faults: FaultPlan,
) -> dict[str, Any]:
    job, kept = experiment.job(), ModelSelector(experiment.keep)
    job.lr_factor = lower
    job.saver = Saver(folder.path, experiment.checkpoint) if folder is not None else None
    if experiment.pretrain is not None:
        job.start = start_simulated(experiment, folder.path if folder is not None else None)
    record = Record(folder.record if folder is not None else None, clock="virtual", spans=experiment.record.max_spans)

    def make(runtime: Runtime) -> Training:
        training = job.training(runtime)
        if watch is not None:
            watch(training)
        kept.watch(training)
        return training

    try:
        outcome = simulate(
            make,
            faults.apply(experiment.cluster),
            learners=experiment.learners,
            servers=job.strategy.servers,
            seed=experiment.seed,
            record=record,
            shuffle=shuffle,
        )
    finally:
        record.abandon()
        if job.saver is not None:
            job.saver.close()
    faults.check(outcome.fired, outcome.seconds)
    first = next(training for training in outcome.finished if not training.learner.is_server)
    result = {"scores": first.scores, "seconds": outcome.seconds, "clock": "virtual"}
    consensus = kept.choose(first, outcome.consensus, result)
    if folder is not None:
        _save(folder, first, consensus, result)
        write_trace(folder.record, folder.path / "trace.json")
    return result


def train_learner(
    runtime: Runtime, settings: dict[str, Any], watch: Watch | None = None, start: dict[str, torch.Tensor] | None = None
) -> dict[str, Any]:
    """Train one learner of an experiment, on a process of its own; the first learner saves the model.

    ``start`` is what it was pre-trained to, where that is not read from the run's folder.
    """
    experiment = Experiment.of(settings["experiment"])
    torch.set_num_threads(experiment.threads)
    order = RecordedOrder() if experiment.record.order else None
    job = experiment.job()
    folder = Path(settings["folder"]) if settings.get("folder") else None
    job.start = start if start is not None else pretrained(experiment, folder)
    job.lr_factor = settings.get("lr_factor", 1.0)
    job.saver = Saver(Path(settings["folder"]), experiment.checkpoint) if settings.get("folder") else None
    job.fingerprint = fingerprint(settings["experiment"])
    training = job.training(runtime, order)
    if watch is not None:
        watch(training)
    kept = ModelSelector(experiment.keep)
    kept.watch(training)
    try:
        consensus = runtime.run(training.run())
    finally:
        if job.saver is not None:
            job.saver.close()
    if order is not None and settings.get("folder"):
        order.save(Path(settings["folder"]) / f"order-{training.member.world.rank}.txt")
    result = {"scores": training.scores, "seconds": runtime.now(), "clock": "wall"}
    if training.learner.index == 0 and not training.learner.is_server:
        consensus = kept.choose(training, consensus, result)
    if settings.get("folder") and training.learner.index == 0 and not training.learner.is_server:
        _save(RunFolder(Path(settings["folder"])), training, consensus, result)
    return result


def replay_run(folder: RunFolder, out: RunFolder | None) -> dict[str, Any]:
    """Run a recorded run again in the simulator; return how far the two consensus models are apart."""
    experiment = Experiment.read(folder.settings)
    size = experiment.learners + experiment.strategy.servers
    paths = [folder.path / f"order-{rank}.txt" for rank in range(size)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise CheckpointError(f"{missing[0]} is missing; train with --set record.order=true to replay a run")
    torch.set_num_threads(experiment.threads)
    job, kept = experiment.job(), ModelSelector(experiment.keep)
    job.start = pretrained(experiment, folder.path)
    record = Record(out.record if out is not None else None, clock="virtual", spans=experiment.record.max_spans)

    def make(runtime: Runtime, order: Order | None = None) -> Training:
        training = job.training(runtime, order)
        kept.watch(training)
        return training

    outcome = replay(
        make,
        experiment.cluster,
        [read_order(path) for path in paths],
        servers=job.strategy.servers,
        record=record,
    )
    first = next(training for training in outcome.trainings if not training.learner.is_server)
    result: dict[str, Any] = {"scores": first.scores, "seconds": outcome.seconds, "clock": "virtual"}
    consensus = kept.choose(first, outcome.consensus, result)
    first.learner.load(consensus)
    then, now = load_file(folder.model), first.learner.module.state_dict()
    result["equal"] = all(torch.equal(then[name], now[name]) for name in now)
    result["difference"] = max(float((then[name] - now[name]).abs().max()) for name in now)
    result["largest"] = max(float(tensor.abs().max()) for tensor in now.values())
    if out is not None:
        _save(out, first, consensus, result)
    return result


def _save(folder: RunFolder, training: Training, consensus: torch.Tensor, result: dict[str, Any]) -> None:
    training.learner.load(consensus)
    scores = {name: value for name, value in result["scores"].items() if math.isfinite(value)}
    about = {"strategy": type(training.strategy).__name__, "scores": scores}
    training.task.save_assets(folder.path)
    folder.save_model(training.learner.module, about | ({"kept": result["kept"]} if "kept" in result else {}))
