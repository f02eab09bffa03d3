"""``roundelay resume``: continue a run from its last checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import click

from roundelay.cli.fault_options import hosts_of
from roundelay.cli.screen.training_display import Display
from roundelay.cli.train import show, tell_how_to_resume

EPILOG = """\b
Examples:
  roundelay resume runs/tiny
  roundelay resume runs/tiny --learners 4
  mpiexec -n 4 roundelay resume runs/mpi
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--learners", type=int, help="Continue with another number of learners, from the mean of all weights.")
@click.option("--rendezvous", metavar="HOST:PORT", help="Several hosts: run the same command on each of them.")
@click.option("--hosts", type=int, default=1, show_default=True, help="Number of hosts at the rendezvous.")
@click.option(
    "--restarts", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Resume at most N times if all learners (MPI: any) are lost.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    run: Path, *, learners: int | None, rendezvous: str | None, hosts: int, restarts: int, as_json: bool
) -> None:
    """Continue RUN from its newest complete checkpoint; with as many learners as before, as if it had never stopped."""
    from roundelay.experiment.backends import RunOptions
    from roundelay.experiment.continuation import is_finished, resume

    if is_finished(run):
        if as_json:
            click.echo(json.dumps({"run": str(run), "finished": True}))
        else:
            click.echo(f"{run}: already finished", err=True)
        return
    options = RunOptions(hosts=hosts_of(rendezvous, hosts), restarts=restarts)
    with tell_how_to_resume(run):
        done = resume(run, learners=learners, options=options, observer=Display(as_json=as_json))
    show(done, as_json=as_json)
