"""``roundelay train``: one experiment, any strategy, any runtime."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from roundelay import config
from roundelay.cli.fault_options import fault_options, hosts_of, parse_slow, plan_of
from roundelay.cli.screen.training_display import Display, figures
from roundelay.experiment.backends import REJOINS, On, RunOptions
from roundelay.experiment.run_training import Changes, Run, configure, train

__all__ = ["command", "show"]

EPILOG = """\b
Examples:
  roundelay train experiments/tiny.toml --out runs/tiny
  roundelay train experiments/an4-dnn.toml --data data/an4 --out runs/an4-dnn
  roundelay train experiments/tiny.toml --out runs/two --learners 2 --strategy averaging
  roundelay train experiments/tiny.toml --out runs/sim --on simulator --learners 16 --slow 3=10
  roundelay train experiments/tiny.toml --out runs/faults --learners 4 --faults "kill 1 at 1s; stop 2 for 1s at 2s"
  roundelay train experiments/tiny.toml --out runs/set --set optimizer.lr=0.1 --set budget.minibatches=200
  mpiexec -n 4 roundelay train experiments/tiny.toml --out runs/mpi --on mpi
"""


@click.command(epilog=EPILOG)
@click.argument("experiment", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The run's folder; must be new or empty.")
@click.option(
    "--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A folder of prepared data."
)
@click.option("--strategy", help="Strategy name, or file.py:Name; 'roundelay strategies' lists them.")
@click.option("--learners", type=int, help="Number of learners; servers are extra.")
@click.option("--learners-per-node", type=int, help="For hierarchical strategies and the simulated cluster.")
@click.option(
    "--on", type=click.Choice(["processes", "simulator", "mpi"]), default="processes", show_default=True,
    help="Where learners run.",
)  # fmt: skip
@click.option("--cluster", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A simulated cluster.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change any setting of the experiment.")
@click.option("--slow", multiple=True, metavar="LEARNER=FACTOR", help="Slow a learner down, to study stragglers.")
@click.option(
    "--shuffle-ties", type=int, metavar="SEED", help="Simulator: break ties of simultaneous events at random."
)
@click.option("--rendezvous", metavar="HOST:PORT", help="Several hosts: run the same command on each of them.")
@click.option("--hosts", type=int, default=1, show_default=True, help="Number of hosts at the rendezvous.")
@click.option("--token", default="", help="Secret of the run, the same on all hosts; --rendezvous needs it.")
@click.option(
    "--restarts", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Resume at most N times if all learners (MPI: any) are lost.",
)  # fmt: skip
@fault_options
@click.option("--debug", is_flag=True, help="Check as it runs that mixing conserves the mean.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(experiment: Path, out: Path, *, as_json: bool, on: On, **options: Any) -> None:
    """Train EXPERIMENT and leave the model, its settings and a record of the run in a folder."""
    changes = Changes(
        options["data"], options["strategy"], options["learners"], options["cluster"], options["learners_per_node"],
        options["debug"], dict(config.parse_assignment(each) for each in options["assignments"]),
    )  # fmt: skip
    rendezvous, hosts, display = options["rendezvous"], options["hosts"], Display(as_json=as_json)
    how = RunOptions(
        slow=parse_slow(options["slow"]) if options["slow"] else None,
        heartbeat_timeout=options["heartbeat_timeout"],
        hosts=hosts_of(rendezvous, hosts, options["token"]) if rendezvous is not None or hosts > 1 else None,
        restarts=options["restarts"],
        shuffle_ties=options["shuffle_ties"],
    )
    settings = configure(experiment, changes, on=on, options=how)
    if options["faults"] or options["rejoins"] != REJOINS or options["heartbeat_timeout"] is not None:
        faults = plan_of(options["faults"], settings, options["rejoins"], options["heartbeat_timeout"])
        how = dataclasses.replace(how, faults=faults)
    show(train(settings, out, on=on, options=how, observer=display), as_json=as_json)


def show(run: Run, *, as_json: bool) -> None:
    """Print what came of a run, on the rank that has it."""
    if not run.reported:
        return
    if as_json:
        click.echo(json.dumps(run.plain() | {"run": str(run.folder)}))
        return
    scores = "  ".join(figures(run.scores))
    click.echo(f"{run.folder}: {scores}  in {run.seconds:.3f} s ({run.clock} time)")
