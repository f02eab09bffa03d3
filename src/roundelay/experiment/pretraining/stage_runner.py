"""The part of ``roundelay train`` that pre-trains, stage by stage, before the run itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
from torch import Tensor

from roundelay.cli.score_format import figures
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.runtime import Runtime

__all__ = ["learner", "on_one_host", "pretrain", "pretrain_as_rank", "pretrain_on_simulator"]

Launch = Callable[[str, dict[str, Any], Path], list[Any]]
"""Call an entry with settings on every rank, and have records written into a folder; return what each returned."""
Stage = Callable[[Path, str], AbstractContextManager[Runtime]]
"""Give this rank's runtime of a stage whose records go to a folder, by the folder and the stage's name."""


def on_one_host(experiment: Experiment, out: Path) -> None:
    """Refuse to pre-train on several hosts: a stage reads what the one before it has written on one of them."""
    from roundelay.experiment.pretraining.layer_stages import is_wanted

    if is_wanted(experiment, out):
        raise SettingsError(
            "pretrain: hosts that meet by --rendezvous have no files in common; pre-train on one host, or under "
            "torchrun, and give --set pretrain.weights=RUN/pretrain/model.safetensors"
        )


def pretrain(experiment: Experiment, out: Path, launch: Launch, *, as_json: bool) -> None:
    """Pre-train what the experiment asks for, each stage by a launch of its own."""
    from roundelay.experiment.pretraining.layer_stages import is_wanted, resume

    if not is_wanted(experiment, out):
        return
    stages, left = resume(experiment, out)
    for stage in left:
        place = out / "pretrain" / str(stage + 1)
        place.mkdir(parents=True, exist_ok=True)
        settings = {"experiment": experiment.plain(), "folder": str(out.absolute()), "stage": stage}
        settings["minibatches"] = stages.budget(stage).total
        results = launch("roundelay.experiment.pretraining.stage_runner:learner", settings, place)
        _report(next(result for result in results if result is not None), as_json=as_json)


def pretrain_on_simulator(experiment: Experiment, out: Path, *, as_json: bool) -> None:
    """Pre-train on the experiment's simulated cluster."""
    from roundelay.cli.training_display import Display
    from roundelay.experiment.pretraining.layer_stages import is_wanted, resume

    if not is_wanted(experiment, out):
        return
    stages, left = resume(experiment, out)
    for stage in left:
        with Display(stages.budget(stage).total) as display:
            about = stages.simulate(stage, out, watch=display.watch)
        _report(about, as_json=as_json)


def pretrain_as_rank(experiment: Experiment, out: Path, stage_of: Stage, *, as_json: bool) -> dict[str, Tensor] | None:
    """Pre-train as one rank of a world that is there already; return the weights to start with, None if saved before.

    All stages run in the same processes, and what has been done is kept in memory, so that no rank has to wait for a
    file of another's.
    """
    from roundelay.cli.training_display import Display
    from roundelay.experiment.pretraining.layer_stages import is_wanted, resume

    if not is_wanted(experiment, out):
        return None
    stages, left = resume(experiment, out)
    for stage in left:
        part = f"pretrain/{stage + 1}"
        with Display(stages.budget(stage).total) as display, stage_of(out / part, part) as runtime:
            about = stages.train(stage, runtime, out, watch=display.watch)
        if runtime.initial_rank == experiment.strategy.servers:
            _report(about, as_json=as_json)
    return stages.done


def learner(runtime: Runtime, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a stage in a process of its own, with a display on the first."""
    from roundelay.cli.training_display import Display
    from roundelay.experiment.pretraining.layer_stages import train_stage

    with Display(settings["minibatches"]) as display:
        return train_stage(runtime, settings, display.watch)


def _report(about: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        return
    scores = "  ".join(figures(about["scores"]))
    guarded = f"  guarded {about['guarded']} times" if about["guarded"] else ""
    click.echo(
        f"pretrain {about['kind']} {about['stage']} of {about['stages']} ({about['layer']}): {scores}{guarded}",
        err=True,
    )
