"""``roundelay replay``: a recorded asynchronous run, again, where it can be debugged."""

from __future__ import annotations

import json
from pathlib import Path

import click

from roundelay.runs.run_folder import RunFolder

__all__ = ["command"]

EPILOG = """\b
Examples:
  roundelay train experiments/tiny.toml --out runs/ring --learners 4 --strategy adpsgd --set record.order=true
  roundelay replay runs/ring
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Leave the replayed run in this folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(run: Path, out: Path | None, *, as_json: bool) -> None:
    """Run RUN again in the simulator, every learner in the order that it wrote down, and compare the weights."""
    from roundelay.experiment.execution import replay_run
    from roundelay.experiment.settings import Experiment

    folder = None
    if out is not None:
        folder = RunFolder(out)
        folder.create(Experiment.read(RunFolder(run).settings), {"replay of": str(run)})
    result = replay_run(RunFolder(run), folder)
    if as_json:
        click.echo(json.dumps(result))
        return
    if result["equal"]:
        click.echo(f"{run}: replayed to the same weights, bit for bit")
    else:
        share = result["difference"] / result["largest"]
        click.echo(f"{run}: replayed to weights that differ by {share:.1e} of the largest")
