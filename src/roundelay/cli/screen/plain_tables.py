"""Tables without frames that fit the terminal: text is wrapped, and no name is ever cut."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])
PIPE = 160  # columns without a terminal
WIDE = 1000
NARROW = 110
"""With fewer columns than this, tables have fewer and higher rows."""


def wide_option(function: F) -> F:
    """Add ``--wide``."""
    return click.option("--wide", is_flag=True, help="Do not fit tables to the terminal: one line per row.")(function)


def plain_console(*, wide: bool = False, pipe: int = PIPE) -> Console:
    """Return a console as wide as the terminal or as COLUMNS says; without both, ``pipe`` columns wide."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, markup=False, width=WIDE if wide else None if known else pipe)


def plain_table(*headings: str, names: int = 1, right: tuple[str, ...] = ()) -> Table:
    """Return a table without a frame; its first ``names`` columns are never wrapped, nor those in ``right``."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for k, heading in enumerate(headings):
        number = heading in right
        table.add_column(heading, no_wrap=number or k < names, overflow="fold", justify="right" if number else "left")
    return table


def fits(console: Console, table: Table) -> bool:
    """Tell whether a table can be shown without cutting a column that is not to be wrapped."""
    return Measurement.get(console, console.options.update(width=WIDE), table).minimum <= console.width


def keep_whole(table: Table) -> Table:
    """Give columns that are not to be wrapped the width of their longest cell, so that only the others shrink."""
    for column in table.columns:
        if column.no_wrap:
            column.min_width = max(len(str(cell)) for cell in [column.header, *column.cells])
    return table
