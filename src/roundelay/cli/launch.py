"""``roundelay launch``: anyone's script with `roundelay.join`, on many learners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roundelay.cli.fault_options import hosts_of

__all__ = ["command"]

EPILOG = """\b
Examples:
  roundelay launch train.py --learners 4
  roundelay launch train.py --learners 4 -- --epochs 10 --batch 64
  roundelay launch train.py --learners 4 --logs logs
  roundelay launch train.py --learners 8 --hosts 2 --rendezvous 10.0.0.1:29500 --token SECRET
"""


@click.command(epilog=EPILOG)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--learners", type=int, required=True, help="Number of learners, on all hosts together.")
@click.option(
    "--rejoins", type=click.IntRange(0), default=3, show_default=True, metavar="N",
    help="Restart a lost learner at most N times.",
)  # fmt: skip
@click.option(
    "--restarts", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Restart all at most N times if no learner is left; join's checkpoints= continues.",
)  # fmt: skip
@click.option(
    "--logs", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Write what learners other than the first print to files here; default: to the terminal, with their numbers.",
)  # fmt: skip
@click.option("--rendezvous", metavar="HOST:PORT", help="Several hosts: run the same command on each of them.")
@click.option("--hosts", type=int, default=1, show_default=True, help="Number of hosts at the rendezvous.")
@click.option("--token", default="", help="Secret of the run, the same on all hosts; --rendezvous needs it.")
@click.option(
    "--heartbeat-timeout", type=click.FloatRange(0.05), default=30.0, show_default=True, metavar="SECONDS",
    help="Seconds without heartbeat until a learner counts as lost.",
)  # fmt: skip
def command(script: Path, arguments: tuple[str, ...], *, learners: int, **options: Any) -> None:
    """Run SCRIPT on many learners; what stands after -- is for the script.

    The loops that it joins survive the loss of a learner: the others train its minibatches, and it comes back.
    """
    rendezvous, hosts, token = (options.pop(name) for name in ("rendezvous", "hosts", "token"))
    where = hosts_of(rendezvous, hosts, token)
    from roundelay.user_loop.script_launcher import launch

    run = launch(script, arguments, learners=learners, hosts=where, **options)
    if run.losses:
        times = f", and all of them {run.resumed} times" if run.resumed else ""
        click.echo(
            f"{script.name}: {len(run.losses)} losses of learners; {run.restarted} were started again{times}", err=True
        )
