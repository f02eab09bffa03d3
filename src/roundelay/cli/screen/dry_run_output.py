"""What ``--dry-run`` prints."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundelay import config
from roundelay.cli.screen.time_left import say_duration
from roundelay.planning.assumptions import say_bytes, say_seconds

if TYPE_CHECKING:  # torch takes seconds to import
    from roundelay.experiment.backends import On, RunOptions
    from roundelay.experiment.run_training import Changes
    from roundelay.speech.preparation.preparation_preview import PreparationPreview


def show_training(path: Path, changes: Changes, *, on: On, options: RunOptions, as_json: bool) -> None:
    """Print what training would be."""
    from roundelay.experiment.dry_run import DryRun, dry_run

    found: DryRun = dry_run(path, changes, on=on, options=options)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return
    click.echo(f"# {path}, resolved\n{config.dump(found.settings)}")
    for line in _training_lines(found):
        click.echo(line)


def _training_lines(found: Any) -> list[str]:
    if found.unknown:
        return [f"not known: {found.unknown}"]
    learners = found.settings.get("learners", 1)
    return [
        f"steps: {found.minibatches} minibatches, {found.epochs:g} epochs; {found.steps} per learner, of {learners}",
        f"memory: {found.parameters / 1e6:.2f} M parameters; a learner keeps {say_bytes(found.memory_bytes)}, and its "
        "activations",
        f"time: {say_seconds(found.gradient_seconds)} per minibatch, measured now; about "
        f"{say_duration(found.seconds)} on this machine, without start and communication",
        "nothing was trained or written",
    ]


def show_preparation(preview: PreparationPreview, out: Path, *, as_json: bool) -> None:
    """Print what preparation would do."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(preview) | {"out": str(out)}))
        return
    for name, (utterances, hours) in preview.splits.items():
        click.echo(f"{name:14} {utterances:7} utterances  {hours:8.3f} h")
    click.echo(preparation_line(preview))
    click.echo("nothing was written")


def preparation_line(preview: PreparationPreview) -> str:
    """Say in one line which stages run, and about how long they take."""
    if not preview.missing:
        return f"nothing to do: {', '.join(preview.done)} are done"
    done = f"; done before: {', '.join(preview.done)}" if preview.done else ""
    hours = sum(hours for _, hours in preview.splits.values())
    return (
        f"{hours:.2f} h of speech: {', '.join(preview.missing)}{done}; about {say_duration(preview.seconds)} "
        f"with {preview.jobs} {'job' if preview.jobs == 1 else 'jobs'}"
    )
