"""``roundelay resume``: go on with a run from its last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec

from roundelay.errors import CheckpointError, SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.runs.run_folder import RunFolder, versions

__all__ = ["command"]

EPILOG = """\b
Examples:
  roundelay resume runs/tiny
  roundelay resume runs/tiny --learners 4
  mpiexec -n 4 roundelay resume runs/mpi
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--learners", type=int, help="Go on with another number of learners, from the mean of all weights.")
@click.option("--rendezvous", metavar="HOST:PORT", help="Several hosts: run the same command on each of them.")
@click.option("--hosts", type=int, default=1, show_default=True, help="How many hosts meet at the rendezvous.")
@click.option(
    "--restarts", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="When all learners are gone (under MPI: any), resume again, N times at most.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(run: Path, **options: Any) -> None:
    """Go on with RUN from its newest whole checkpoint; with as many learners as before, as if it had never stopped."""
    from roundelay.cli.train import command as as_before
    from roundelay.cli.train import train

    folder = RunFolder(run)
    experiment, about, begun = _read(folder)
    if folder.model.exists() and (run / "model.json").exists():
        if options["as_json"]:
            click.echo(json.dumps({"run": str(run), "finished": True}))
        else:
            click.echo(f"{run}: has finished already", err=True)
        return
    lines = changed_versions(about)
    if options["learners"] is not None and options["learners"] != experiment.learners:
        experiment, said = resized(experiment, options["learners"])
        folder.revise(experiment, about | {"learners": experiment.learners})
        lines += said
    for line in lines:
        click.echo(f"{run}: {line}", err=True)
    slow = tuple(each for each in begun.options.slow if int(each.partition("=")[0]) < experiment.learners)
    defaults = as_before.make_context("train", [str(folder.settings), "--out", str(run)]).params
    given = {"on": begun.on, "resume": True, "shuffle_ties": begun.shuffle_ties, "slow": slow}
    train(experiment, run, defaults | options | given)


class _Options(msgspec.Struct):
    slow: list[Annotated[str, msgspec.Meta(pattern=r"^\d+=")]] = []


class _About(msgspec.Struct):
    """What ``run.json`` tells of how the run was begun."""

    on: Literal["processes", "simulator", "mpi"]
    options: _Options = msgspec.field(default_factory=_Options)
    shuffle_ties: int | None = None


def _read(folder: RunFolder) -> tuple[Experiment, dict[str, Any], _About]:
    path = folder.path / "run.json"
    if not folder.settings.exists() or not path.exists():
        raise CheckpointError(f"{folder.path}: not a run: there is no {folder.settings.name} and run.json in it")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        begun = msgspec.convert(about, _About)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    return Experiment.read(folder.settings), about, begun


def changed_versions(about: dict[str, Any]) -> list[str]:
    """Say which code is another than that which began the run: results may differ in the last bits."""
    now = versions()
    return [
        f"began with {name} {about[name]}, goes on with {now[name]}"
        for name in ("roundelay", "torch", "python")
        if name in about and about[name] != now[name]
    ]


def resized(experiment: Experiment, learners: int) -> tuple[Experiment, list[str]]:
    """Return the experiment for another number of learners, its minibatches unchanged, and what that changes."""
    if learners < 1:
        raise SettingsError(f"--learners must be at least 1, not {learners}")
    before, kind = experiment.learners, type(experiment.strategy)
    size = experiment.make_task().nominal_frames
    changes: dict[str, Any] = {"learners": learners}
    if experiment.batch.total is not None:
        changes["batch"] = type(experiment.batch)(size=experiment.batch_size(size))
    kept = ", ".join(kind.replicated)
    state = f"{kind.__name__} keeps its {kept}" if kept else f"{kind.__name__} begins anew"
    lines = [
        f"{learners} learners in place of {before}: all start from the mean of weights and of optimizers' state",
        f"{state}; a global batch has {size * learners} frames in place of {size * before}",
        "the result is not that of a run that never stopped",
    ]
    return experiment.replace(**changes), lines
