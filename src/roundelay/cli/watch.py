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
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from roundelay.cli.text_plots import bar, curve
from roundelay.cli.training_display import figures, say_speed
from roundelay.errors import CheckpointError
from roundelay.runs.follower import Follower
from roundelay.runs.metric_logs import MetricLogs
from roundelay.runs.reader import member_order, read_object

EPILOG = """\b
Examples:
  roundelay watch runs/tiny
  roundelay watch runs/tiny --once
  roundelay watch runs/tiny --tensorboard logs/tiny
  roundelay watch runs/tiny --wandb speech --mlflow speech
"""
MOST_LEARNERS = 16  # bars; one line stands for all further learners
KINDS = {"compute": "green", "communicate": "blue", "wait": "yellow", "serve": "magenta", "evaluate": "cyan"}
LETTERS = {"compute": "█", "communicate": "▓", "wait": "░", "serve": "▒", "evaluate": "▚"}


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
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        for _ in _updates(follower, interval, logs):
            live.update(draw(follower, console.width))
        live.update(draw(follower, console.width))


def _follow_plainly(follower: Follower, interval: float, logs: list[MetricLogs]) -> None:
    said = 0
    for _ in _updates(follower, interval, logs):
        for event in follower.scores[said:]:
            click.echo(_evaluation(event))
        said = len(follower.scores)
    click.echo(_state(follower))


def _updates(follower: Follower, interval: float, logs: list[MetricLogs]) -> Iterator[None]:
    """Yield after each time that the record is read, until the run has finished."""
    while True:
        yield
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


def draw(follower: Follower, width: int) -> Group:
    """Draw the state of a run for a terminal of this width."""
    parts: list[Any] = [Text(follower.title, style="bold", no_wrap=True, overflow="ellipsis"), Text(_state(follower))]
    if not follower.losses:
        return Group(*parts, Text("no events yet"))
    room = max(20, width - 12)
    parts += [Text("training loss by frames", style="dim")]
    parts += [Text(line, no_wrap=True) for line in curve(follower.losses, room, 8)]
    name = "error" if any("error" in event for event in follower.scores) else "loss"
    held = [(event["frames"], event[name]) for event in follower.scores if name in event]
    if len(held) > 1:
        parts += [Text(f"held-out {name}", style="dim")]
        parts += [Text(line, no_wrap=True) for line in curve(held, room, 4)]
    if follower.scores:
        parts.append(Text(_evaluation(follower.scores[-1]), no_wrap=True, overflow="ellipsis"))
    parts += [_bars(follower, width), _legend()]
    parts += [Text(_event(event), style="red") for event in follower.events[-3:]]
    if follower.unreadable:
        parts.append(Text(f"{follower.unreadable} lines of the record cannot be read", style="red"))
    return Group(*parts)


def _state(follower: Follower) -> str:
    done = f"minibatch {follower.steps}" + (f"/{follower.total}" if follower.total else "")
    state = "finished" if follower.finished else "running"
    if not follower.finished and follower.silent_seconds > 60:
        state = f"no update for {follower.silent_seconds:.0f} s"
    words = [state, done, f"loss {follower.loss:.4f}", say_speed(follower.speed)]
    return "  ".join([*words, f"{follower.seconds:.1f} s {follower.clock}"])


def _evaluation(event: dict[str, Any]) -> str:
    words = [f"epoch {event.get('epoch', 0):.3g}", f"minibatch {event['minibatch']}"]
    known = {name: event[name] for name in ("loss", "error", "distance") if isinstance(event.get(name), int | float)}
    return "  ".join([*words, *figures(known), f"{event['time']:.3f} s {event.get('clock', '')}"])


def _event(event: dict[str, Any]) -> str:
    reason = event.get("reason") or event.get("kind") or ""
    return f"{event['time']:.3f} s  {event['event']}  {event['member']}  {reason}"


def _bars(follower: Follower, width: int) -> Table:
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "right", "left", "left"):
        table.add_column(justify=justify, no_wrap=True)
    members = sorted(follower.learners.items(), key=lambda pair: member_order(pair[0]))
    most = max((each.steps for _, each in members), default=1) or 1
    room = max(10, (width - 36) // 2)
    for member, each in members[:MOST_LEARNERS]:
        steps = bar(each.steps / most, room // 2)
        table.add_row(member, f"{each.steps} steps", steps, _shares(each.spent, room))
    if len(members) > MOST_LEARNERS:
        rest = [each.steps for _, each in members[MOST_LEARNERS:]]
        table.add_row(f"{len(rest)} more", f"{min(rest)} to {max(rest)}", "", "")
    return table


def _shares(spent: dict[str, float], width: int) -> Text:
    """Draw the time by kind; each kind has its own pattern, so that no colour is needed."""
    whole, text, drawn = sum(spent.values()), Text(), 0
    done = 0.0
    for kind, colour in KINDS.items():
        done += spent.get(kind, 0.0)
        count = round(width * done / whole) - drawn if whole else 0
        text.append(LETTERS[kind] * count, style=colour)
        drawn += count
    return text


def _legend() -> Text:
    text = Text()
    for kind, colour in KINDS.items():
        text.append(f"{LETTERS[kind]} ", style=colour)
        text.append(f"{kind}  ")
    return text
