"""Progress bars on standard error, one per stage; none without a terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class ProgressDisplay:
    """Progress bars with their own columns, shown inside ``with``."""

    def __init__(self, *columns: ProgressColumn) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.progress = Progress(*columns, console=self.console, disable=not sys.stderr.isatty(), transient=True)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows progress; it takes the stage, the number done, and the total."""
    times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    columns = (TextColumn("{task.description:<12}"), BarColumn(bar_width=24), MofNCompleteColumn(), *times)
    if sys.stderr.isatty():
        logging.getLogger("roundelay.speech").setLevel(logging.WARNING)
    with ProgressDisplay(*columns) as display:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = display.progress.add_task(stage, total=total)
            display.progress.update(tasks[stage], completed=done, total=total)

        yield show
