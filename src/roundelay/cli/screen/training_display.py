"""What a person sees of training: a bar on a terminal, one line per evaluation elsewhere; scores and speeds."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from roundelay.cli.screen.time_left import TimeLines
from roundelay.experiment.run_observer import Evaluated, RunObserver

__all__ = ["Display", "figures", "say_speed"]

NAMES = {"distance": "consensus distance"}


class Display(RunObserver):
    """Progress of a run, on standard error."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.quiet, self.total = as_json, 0
        self.progress: Progress | None = None
        self.lines: TimeLines | None = None

    def started(self, about: Mapping[str, Any]) -> None:
        """Say what begins."""
        if not self.quiet:
            servers = f" and {_some(about['servers'], 'server')}" if about["servers"] else ""
            where = f"{about['on']}, {about['device']}"
            click.echo(
                f"{about['strategy']} on {_some(about['learners'], 'learner')}{servers} ({where}): "
                f"batch {about['batch']} per learner, {about['global_batch']} in all; "
                f"{about['minibatches']} minibatches, {about['epochs']:g} epochs",
                err=True,
            )
            if rule := about.get("rule"):
                click.echo(f"{rule}; --set rate.rule=none: the experiment's own numbers", err=True)

    def noticed(self, line: str) -> None:
        """Print the line."""
        click.echo(line, err=True)

    def began(self, minibatches: int) -> None:
        """Show an empty bar."""
        self.total, self.done, self.frames, self.since = minibatches, 0, 0, time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self.bar = self.progress.add_task("minibatch", total=minibatches, figures="")
        self.progress.start()
        self.lines = TimeLines("training", minibatches, self.say, time.monotonic)

    def say(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.progress is not None and not self.quiet:
            self.progress.console.print(line, highlight=False, soft_wrap=True)

    def stepped(self, minibatch: int, frames: int, loss: float) -> None:
        """Move the bar."""
        self.done, self.frames = max(self.done, minibatch + 1), self.frames + frames
        if self.lines is not None:
            self.lines.update(self.done)
        if self.progress is not None and not self.progress.disable:
            rate = self.frames / max(1e-9, time.monotonic() - self.since)
            self.progress.update(self.bar, completed=self.done, figures=f"loss {loss:.3f}  {say_speed(rate)}")

    def evaluated(self, evaluation: Evaluated) -> None:
        """Print a line."""
        parts = [f"epoch {evaluation.epoch:g}", f"minibatch {evaluation.minibatch}/{self.total}"]
        parts += figures(evaluation.scores)
        if evaluation.clock == "virtual":
            parts.append(f"{evaluation.seconds:.3f} s virtual")
        if self.lines is not None and self.lines.time_left.left:
            parts.append(str(self.lines.time_left))
        if self.progress is not None:
            self.progress.console.print("  ".join(parts), highlight=False, soft_wrap=True)

    def ended(self) -> None:
        """Take the bar away."""
        if self.progress is not None:
            self.progress.stop()

    def stage_ended(self, about: Mapping[str, Any]) -> None:
        """Say what a stage of pre-training came to."""
        if not self.quiet:
            scores = "  ".join(figures(about["scores"]))
            guarded = f"  guarded {about['guarded']} times" if about["guarded"] else ""
            stage = f"{about['kind']} {about['stage']} of {about['stages']} ({about['layer']})"
            click.echo(f"pretrain {stage}: {scores}{guarded}", err=True)


def _some(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def figures(scores: Mapping[str, float]) -> list[str]:
    """Write each score with its name; an error is a share, written in percent."""
    return [
        f"{name} {100 * value:.2f} %" if name == "error" else f"{NAMES.get(name, name)} {value:.4f}"
        for name, value in scores.items()
    ]


def say_speed(frames_per_second: float) -> str:
    """Write a speed in short: ``31.2 k frames/s``."""
    number = f"{frames_per_second / 1000:.1f} k" if frames_per_second >= 1000 else f"{frames_per_second:.0f}"
    return f"{number} frames/s"
