"""``roundelay runs``: list runs with their state and scores."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from roundelay.cli.screen.plain_tables import keep_whole, plain_console, plain_table, wide_option
from roundelay.cli.screen.time_left import say_duration
from roundelay.cli.screen.training_display import figures
from roundelay.runs.run_list import list_runs

EPILOG = """\b
Examples:
  roundelay runs
  roundelay runs studies/tiny
  roundelay runs --json
"""

LEAST_FOLDER = 20  # columns


@click.command(epilog=EPILOG)
@click.argument("folder", default="runs", type=click.Path(path_type=Path))
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(folder: Path, *, wide: bool, as_json: bool) -> None:
    """List the runs in FOLDER (default: runs) and below it, the latest first.

    A run that has written nothing for a minute and has no model is shown as stopped: 'roundelay resume' continues it.
    """
    found = list_runs(folder)
    if as_json:
        click.echo(json.dumps({"runs": [dataclasses.asdict(run) for run in found]}))
        return
    if not found:
        click.echo(f"{folder}: no runs in it", err=True)
        return
    table = plain_table("run", "strategy", "learners", "state", "score", right=("learners",))
    table.columns[0].no_wrap, table.columns[1].no_wrap = False, True  # a folder's name may be long
    table.columns[0].min_width = LEAST_FOLDER
    for run in found:
        done = f" {run.done}/{run.total}" if run.state != "finished" and run.total else ""
        state = f"{run.state}{done}, {say_duration(run.age_seconds)} ago"
        table.add_row(run.folder, run.strategy, str(run.learners), state, "  ".join(figures(run.scores)))
    plain_console(wide=wide).print(keep_whole(table))
