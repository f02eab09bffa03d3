"""What a person sees of a study while it is computed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn

from roundelay.cli.screen.progress_bars import ProgressDisplay
from roundelay.cli.screen.time_left import TimeLines
from roundelay.cli.screen.training_display import figures

if TYPE_CHECKING:  # it imports torch
    from roundelay.study.matrix import PlannedCell


class StudyDisplay(ProgressDisplay):
    """One bar for the study and one per process on a terminal; one line per cell elsewhere."""

    def __init__(self) -> None:
        text, percent = TextColumn("{task.description}"), TextColumn("{task.fields[figures]}")
        super().__init__(text, BarColumn(bar_width=12), percent, TimeElapsedColumn())
        self.whole: TaskID | None = None
        self.bars: dict[int, TaskID] = {}
        self.total = self.done = 0
        self.bad = 0
        self.shares: dict[int, float] = {}
        self.lines: TimeLines | None = None

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if raised[0] is KeyboardInterrupt:
            self.console.print(f"stopped after {self.done} of {self.total} cells; run the same command to continue")

    def planned(self, total: int, done: int) -> None:
        """Show the number of cells, and how many were computed before."""
        self.total, self.done = total, done
        before = f", {done} of them computed before" if done else ""
        self.console.print(f"{total} cells{before}")
        self.whole = self.progress.add_task("study", total=total, completed=done, figures=f"{done}/{total}")
        self.lines = TimeLines("study", total, self.console.print, time.monotonic)

    def started(self, slot: int, cell: PlannedCell) -> None:
        """Show a cell on its process's bar."""
        if slot not in self.bars:
            self.bars[slot] = self.progress.add_task("", total=1, figures="")
        self.progress.reset(self.bars[slot], description=cell.name, total=1, figures="")

    def progressed(self, slot: int, share: float) -> None:
        """Move a process's bar."""
        share = self.shares[slot] = min(1.0, share)
        self.progress.update(self.bars[slot], completed=share, figures=f"{100 * share:.0f} %")
        self._count()

    def finished(self, slot: int, outcome: dict[str, Any]) -> None:
        """Count the cell, and print its result."""
        self.done += 1
        self.shares.pop(slot, None)
        left = self._count()
        if outcome["status"] != "done":
            self.bad += 1
        if self.whole is not None and not left:
            bad = f", {self.bad} failed or diverged" if self.bad else ""
            self.progress.update(self.whole, completed=self.done, figures=f"{self.done}/{self.total}{bad}")
        if self.progress.disable or outcome["status"] != "done":
            line = [f"{self.done}/{self.total}", outcome["name"], _said(outcome), *([left] if left else [])]
            self.console.print("  ".join(line), soft_wrap=True)

    def _count(self) -> str:
        """Count whole and begun cells; return the time left, in words, if any is."""
        if self.lines is None:
            return ""
        self.lines.update(self.done + sum(self.shares.values()))
        if self.whole is not None and self.lines.time_left.left is not None:
            bad = f", {self.bad} failed or diverged" if self.bad else ""
            said = f"{self.done}/{self.total}{bad}, {self.lines.time_left}"
            self.progress.update(self.whole, completed=self.done, figures=said)
        return str(self.lines.time_left) if self.done < self.total else ""


def _said(outcome: dict[str, Any]) -> str:
    if outcome["status"] != "done":
        return f"{outcome['status']}: {outcome['error']}"
    return f"{'  '.join(figures(outcome['scores']))}  {outcome['seconds']:.3f} s {outcome['clock']}"
