"""Continue a run from its last checkpoint, or run a recorded one again in the simulator."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors.torch import load_file

from roundelay.errors import CheckpointError, SettingsError
from roundelay.experiment.backends import On, RunOptions
from roundelay.experiment.learner_entry import finish, start_weights
from roundelay.experiment.run_observer import RunObserver
from roundelay.experiment.run_training import Run, run
from roundelay.experiment.settings import Experiment
from roundelay.runs.record import Record
from roundelay.runs.run_folder import RunFolder, versions
from roundelay.runtime import Clock
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator import simulation
from roundelay.task import Scores
from roundelay.training.event_order import read_order


@dataclass(frozen=True)
class Replay:
    """How far a replayed run is from the recorded one."""

    scores: Scores
    seconds: float
    clock: Clock
    equal: bool
    """Whether all weights are equal to the bit."""
    difference: float
    """The largest difference of two weights."""
    largest: float
    """The largest weight."""
    kept: dict[str, Any] | None = None
    folder: Path | None = None


class _Options(msgspec.Struct):
    slow: list[Annotated[str, msgspec.Meta(pattern=r"^\d+=")]] = []


class _Begun(msgspec.Struct):
    """What ``run.json`` tells of how the run was begun."""

    on: On
    options: _Options = msgspec.field(default_factory=_Options)
    shuffle_ties: int | None = None


def is_finished(path: Path) -> bool:
    """Tell whether a run has its model; raise if it is no run."""
    _read(RunFolder(path))
    return (path / "model.json").exists() and RunFolder(path).model.exists()


def resume(
    path: Path | str,
    *,
    learners: int | None = None,
    options: RunOptions | None = None,
    observer: RunObserver | None = None,
) -> Run:
    """Continue a run from its newest complete checkpoint; with as many learners as before, as if it had never stopped.

    ``options`` add hosts and restarts; which learners are slowed is as it was when the run began.
    """
    folder, observer, options = RunFolder(Path(path)), observer or RunObserver(), options or RunOptions()
    experiment, about, begun = _read(folder)
    if "program" in about:
        raise CheckpointError(f"{path}: its model and data are those of a program; run that again, with a new folder")
    if is_finished(folder.path):
        raise CheckpointError(f"{path}: already finished")
    lines = _changed_versions(about)
    if learners is not None and learners != experiment.learners:
        experiment, changes = _resized(experiment, learners)
        folder.revise(experiment, about | {"learners": experiment.learners})
        lines += changes
    for line in lines:
        observer.noticed(f"{path}: {line}")
    slow = {int(each.partition("=")[0]): float(each.partition("=")[2]) for each in begun.options.slow}
    slow = {learner: factor for learner, factor in slow.items() if learner < experiment.learners}
    options = dataclasses.replace(options, slow=slow, shuffle_ties=begun.shuffle_ties)
    return run(experiment, folder.path, on=begun.on, options=options, observer=observer, resumed=True)


def _read(folder: RunFolder) -> tuple[Experiment, dict[str, Any], _Begun]:
    path = folder.path / "run.json"
    if not folder.settings.exists() or not path.exists():
        raise CheckpointError(f"{folder.path}: not a run: there is no {folder.settings.name} and run.json in it")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        begun = msgspec.convert(about, _Begun)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    return Experiment.read(folder.settings), about, begun


def _changed_versions(about: dict[str, Any]) -> list[str]:
    """Say which code differs from that which began the run: results may differ in the last bits."""
    now = versions()
    return [
        f"began with {name} {about[name]}, continues with {now[name]}"
        for name in ("roundelay", "torch", "python")
        if name in about and about[name] != now[name]
    ]


def _resized(experiment: Experiment, learners: int) -> tuple[Experiment, list[str]]:
    """Return the experiment for another number of learners, its minibatches unchanged, and what that changes."""
    if learners < 1:
        raise SettingsError(f"--learners must be at least 1, not {learners}")
    before, kind = experiment.learners, type(experiment.strategy)
    size = experiment.make_task().nominal_frames
    changes: dict[str, Any] = {"learners": learners}
    if experiment.batch.total is not None:
        changes["batch"] = type(experiment.batch)(size=experiment.batch_size(size))
    kept = ", ".join(kind.replicated)
    state = f"{kind.__name__} keeps its {kept}" if kept else f"{kind.__name__} starts with new state"
    lines = [
        f"{learners} learners in place of {before}: all start from the mean of weights and of optimizers' state",
        f"{state}; a global batch has {size * learners} frames in place of {size * before}",
        "the result is not that of a run that never stopped",
    ]
    if experiment.rate is not None and experiment.rate.chosen:
        lines.append(f"the rate and the strategy's settings stay those that were chosen for {before} learners")
    return experiment.replace(**changes), lines


def replay(path: Path | str, out: Path | str | None = None) -> Replay:
    """Run a recorded run again in the simulator, every learner in the order that it wrote down; compare the weights.

    The run was trained with ``record.order = true``; ``out`` is a folder for the replayed run, if it is wanted.
    """
    folder = RunFolder(Path(path))
    experiment = Experiment.read(folder.settings)
    orders = [folder.path / f"order-{rank}.txt" for rank in range(experiment.learners + experiment.strategy.servers)]
    if missing := [order for order in orders if not order.exists()]:
        raise CheckpointError(f"{missing[0]} is missing; train with --set record.order=true to replay a run")
    made = RunFolder(Path(out)) if out is not None else None
    if made is not None:
        made.create(experiment, {"replay of": str(path)})
    torch.set_num_threads(experiment.threads)
    attempt = experiment.job().attempt(None, start=start_weights(experiment, folder.path))
    record = Record(made.record if made is not None else None, clock="virtual", spans=experiment.record.max_spans)
    outcome = simulation.replay(
        attempt.training,
        experiment.cluster or Cluster(),
        [read_order(order) for order in orders],
        servers=experiment.strategy.servers,
        record=record,
    )
    first = next(training for training in outcome.trainings if not training.learner.is_server)
    result = finish(first, outcome.consensus, made.path if made is not None else None, seconds=outcome.seconds)
    then, now = load_file(folder.model), first.learner.module.state_dict()
    return Replay(
        result["scores"],
        result["seconds"],
        result["clock"],
        equal=all(torch.equal(then[name], now[name]) for name in now),
        difference=max(float((then[name] - now[name]).abs().max()) for name in now),
        largest=max(float(tensor.abs().max()) for tensor in now.values()),
        kept=result.get("kept"),
        folder=made.path if made is not None else None,
    )
