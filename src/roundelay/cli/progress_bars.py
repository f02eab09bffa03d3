"""A bar for each stage of something long, on standard error; nothing where that is no terminal."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["bars"]


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that is told the stage, and how much of how much of it is done."""
    shown = sys.stderr.isatty()
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if shown:
        logging.getLogger("roundelay.speech").setLevel(logging.WARNING)
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as shower:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = shower.add_task(stage, total=total)
            shower.update(tasks[stage], completed=done, total=total)

        yield progress
