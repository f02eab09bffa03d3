"""``roundelay replay``: run a recorded asynchronous run again in the simulator, to debug it."""

from __future__ import annotations

import json
from pathlib import Path

import click

EPILOG = """\b
Examples:
  roundelay train tiny --out runs/ring --learners 4 --strategy adpsgd --set record.order=true
  roundelay replay runs/ring
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the replayed run into this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: Path, out: Path | None, *, as_json: bool) -> None:
    """Run RUN again in the simulator, each learner in its recorded order, and compare the weights.

    The program of a run by roundelay.simulate is executed again.
    """
    from roundelay.own_models.program_replay import replay

    found = replay(run, out)
    if as_json:
        plain = {name: value for name, value in vars(found).items() if name != "folder" and value is not None}
        click.echo(json.dumps(plain))
    elif found.equal:
        click.echo(f"{run}: replayed to the same weights, bit for bit")
    else:
        share = found.difference / found.largest
        click.echo(f"{run}: replayed to weights that differ by {share:.1e} of the largest")
