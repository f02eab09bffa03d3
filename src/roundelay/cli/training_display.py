"""What a person sees while something trains: a bar on a terminal, a line an evaluation elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from roundelay.cli.score_format import figures
from roundelay.learner import Learner
from roundelay.training.loop import Training
from roundelay.training.observer import Evaluation, Step

__all__ = ["Display"]


class Display:
    """Progress of a training, on standard error; only learner 0 is drawn."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.frames = total, 0, 0
        self.started = time.monotonic()
        self.console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self.bar = self.progress.add_task("minibatch", total=total, figures="")

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def watch(self, training: Training) -> None:
        """Observe a training that is about to begin."""
        training.observers.append(self)

    def stepped(self, learner: Learner, step: Step) -> None:
        """Draw the bar."""
        if learner.index:
            return
        self.done = max(self.done, learner.minibatch)
        self.frames += learner.frames * step.num_learners
        rate = self.frames / max(1e-9, time.monotonic() - self.started)
        if not self.progress.disable:
            self.progress.update(
                self.bar, completed=self.done, figures=f"loss {step.loss:.3f}  {_short(rate)} frames/s"
            )

    def evaluated(self, learner: Learner, evaluation: Evaluation) -> None:
        """Print a line."""
        if learner.index or learner.is_server:
            return
        parts = [f"epoch {evaluation.epoch:g}", f"minibatch {evaluation.position}/{self.total}"]
        parts += figures(evaluation.scores)
        if evaluation.clock == "virtual":
            parts.append(f"{evaluation.seconds:.3f} s virtual")
        self.progress.console.print("  ".join(parts), highlight=False, soft_wrap=True)


def _short(number: float) -> str:
    return f"{number / 1000:.1f} k" if number >= 1000 else f"{number:.0f}"
