"""The part of ``roundelay train`` that pre-trains, stage by stage, before the run itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from roundelay.experiment import Experiment
from roundelay.runtime import Runtime

__all__ = ["learner", "pretrain", "pretrain_on_simulator"]

Launch = Callable[[str, dict[str, Any], Path], list[Any]]
"""Call an entry with settings on every rank, and have records written into a folder; return what each returned."""


def pretrain(experiment: Experiment, out: Path, launch: Launch, *, as_json: bool) -> None:
    """Pre-train what the experiment asks for, each stage by a launch of its own."""
    from roundelay.pretraining import is_wanted, resume

    if not is_wanted(experiment, out):
        return
    stages, left = resume(experiment, out)
    for stage in left:
        place = out / "pretrain" / str(stage + 1)
        place.mkdir(parents=True, exist_ok=True)
        settings = {"experiment": experiment.plain(), "folder": str(out.absolute()), "stage": stage}
        settings["minibatches"] = stages.budget(stage).total
        results = launch("roundelay.cli.pretraining:learner", settings, place)
        _report(next(result for result in results if result is not None), as_json=as_json)


def pretrain_on_simulator(experiment: Experiment, out: Path, *, as_json: bool) -> None:
    """Pre-train on the experiment's simulated cluster."""
    from roundelay.cli.display import Display
    from roundelay.pretraining import is_wanted, resume

    if not is_wanted(experiment, out):
        return
    stages, left = resume(experiment, out)
    for stage in left:
        with Display(stages.budget(stage).total) as display:
            about = stages.simulate(stage, out, watch=display.watch)
        _report(about, as_json=as_json)


def learner(runtime: Runtime, settings: dict[str, Any]) -> dict[str, Any]:
    """Train a stage in a process of its own, with a display on the first."""
    from roundelay.cli.display import Display
    from roundelay.pretraining import train_stage

    with Display(settings["minibatches"]) as display:
        return train_stage(runtime, settings, display.watch)


def _report(about: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        return
    scores = "  ".join(f"{name} {value:.4f}" for name, value in about["scores"].items())
    guarded = f"  guarded {about['guarded']} times" if about["guarded"] else ""
    click.echo(
        f"pretrain {about['kind']} {about['stage']} of {about['stages']} ({about['layer']}): {scores}{guarded}",
        err=True,
    )
