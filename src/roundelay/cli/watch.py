"""``roundelay watch``: show the progress of a run in the terminal, during the run or afterwards."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from roundelay.cli.screen.run_screen import draw, evaluation_line, state
from roundelay.cli.screen.time_left import TimeLeft
from roundelay.errors import CheckpointError
from roundelay.runs.follower import Follower
from roundelay.runs.metric_logs import MetricLogs
from roundelay.runs.reader import read_object

EPILOG = """\b
Examples:
  roundelay watch runs/tiny
  roundelay watch runs/tiny --once
  roundelay watch runs/tiny --tensorboard logs/tiny
  roundelay watch runs/tiny --wandb speech --mlflow speech
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the current state and exit.")
@click.option("--interval", type=float, default=0.5, show_default=True, help="Seconds between updates.")
@click.option("--tensorboard", type=click.Path(path_type=Path), metavar="DIR", help="Write logs for TensorBoard.")
@click.option("--wandb", metavar="PROJECT", help="Log to a project of Weights & Biases.")
@click.option("--mlflow", metavar="EXPERIMENT", help="Log to an experiment of MLflow.")
@click.option("--json", "as_json", is_flag=True, help="Print the current state as JSON.")
def command(
    run: Path, *, once: bool, interval: float, tensorboard: Path | None, wandb: str | None, mlflow: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the loss, the speed and each learner's use of time of RUN, or of the latest run of a study.

    It ends with the run, or with Ctrl-C, which does not stop the run.  Without a terminal it prints one line per
    evaluation.
    """
    follower = Follower(latest(run))
    follower.read()
    logs = _trackers(follower, tensorboard, wandb, mlflow)
    for each in logs:
        each.write(follower)
    if as_json:
        click.echo(json.dumps(summary(follower)))
    elif once:
        console = Console(highlight=False)
        console.print(draw(follower, console.width))
    elif sys.stdout.isatty():
        _follow(follower, interval, logs)
    else:
        _follow_plainly(follower, interval, logs)
    for each in logs:
        each.close()


def _trackers(follower: Follower, tensorboard: Path | None, wandb: str | None, mlflow: str | None) -> list[MetricLogs]:
    """Return where the numbers of the run go."""
    logs: list[MetricLogs] = []
    run = follower.run
    file = run / "run.json"
    about = read_object(file) if file.exists() else {}
    plain = {name: value for name, value in about.items() if isinstance(value, str | int | float | bool)}
    if tensorboard is not None:
        from roundelay.runs.tensorboard import Logs

        logs.append(Logs(tensorboard))
    if wandb is not None:
        from roundelay.runs.wandb_logs import WandbLogs

        logs.append(WandbLogs(wandb, run, plain))
    if mlflow is not None:
        from roundelay.runs.mlflow_logs import MlflowLogs

        logs.append(MlflowLogs(mlflow, run, plain))
    return logs


def latest(folder: Path) -> Path:
    """Return the run itself, or the run of a study that was written last."""
    if not (folder / "study.json").exists():
        return folder
    records = sorted(folder.glob("runs/*/record*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not records:
        raise CheckpointError(f"{folder}: no run of this study has started yet")
    return records[-1].parent


def _follow(follower: Follower, interval: float, logs: list[MetricLogs]) -> None:
    console = Console(highlight=False)
    with Live(console=console, refresh_per_second=4, transient=False, vertical_overflow="crop") as live:
        for left in _updates(follower, interval, logs):
            live.update(draw(follower, console.width, console.height - 1, left))
        live.update(draw(follower, console.width, console.height - 1))


def _follow_plainly(follower: Follower, interval: float, logs: list[MetricLogs]) -> None:
    said = 0
    for left in _updates(follower, interval, logs):
        for event in follower.scores[said:]:
            rest = f"  {left}" if left.left is not None and not follower.finished else ""
            click.echo(f"{evaluation_line(event)}{rest}")
        said = len(follower.scores)
    click.echo(state(follower))


def _updates(follower: Follower, interval: float, logs: list[MetricLogs]) -> Iterator[TimeLeft]:
    """Yield the time left after each time that the record is read, until the run has finished."""
    left = TimeLeft(follower.total or math.nan)
    while True:
        if follower.total and follower.losses:
            left.update(follower.steps)
        yield left
        if follower.finished and not follower.read():
            return
        time.sleep(interval)
        follower.read()
        for each in logs:
            each.write(follower)


def summary(follower: Follower) -> dict[str, Any]:
    """Return the state of a run for JSON."""
    last = follower.scores[-1] if follower.scores else {}
    return {
        "run": str(follower.run),
        "finished": follower.finished,
        "minibatches": follower.steps,
        "total": follower.total,
        "frames": follower.frames,
        "seconds": follower.seconds,
        "clock": follower.clock,
        "loss": follower.loss if math.isfinite(follower.loss) else None,
        "frames_per_second": follower.speed,
        "scores": {name: last[name] for name in ("loss", "error", "distance") if name in last},
        "learners": {
            member: {"steps": each.steps, "frames": each.frames, "seconds": each.spent}
            for member, each in sorted(follower.learners.items())
        },
        "unreadable": follower.unreadable,
    }
