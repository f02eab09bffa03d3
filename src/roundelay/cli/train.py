"""``roundelay train``: one experiment, any strategy, any runtime."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roundelay import config
from roundelay.cli.fault_options import REJOINS, fault_options, hosts_of, parse_slow, plan_of
from roundelay.cli.screen.file_names import complete
from roundelay.cli.screen.training_display import Display, figures
from roundelay.errors import SettingsError
from roundelay.included_files import find_file

if TYPE_CHECKING:  # torch takes seconds to import
    from roundelay.experiment.backends import On
    from roundelay.experiment.run_training import Run

__all__ = ["command", "show", "tell_how_to_resume"]

EPILOG = """\b
Examples:
  roundelay train tiny --out runs/tiny
  roundelay train my-experiment.toml --out runs/mine
  roundelay train an4-dnn --data data/an4 --dry-run
  roundelay train an4-dnn --data data/an4 --out runs/an4-dnn
  roundelay train tiny --out runs/two --learners 2 --strategy averaging
  roundelay train tiny --out runs/sim --on simulator --learners 16 --slow 3=10
  roundelay train tiny --out runs/faults --learners 4 --faults "kill 1 at 1s; stop 2 for 1s at 2s"
  roundelay train tiny --out runs/set --set optimizer.lr=0.1 --set budget.minibatches=200
  mpiexec -n 4 roundelay train tiny --out runs/mpi --on mpi
"""


@click.command(epilog=EPILOG)
@click.argument("experiment", shell_complete=complete("experiment"))
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; must be new or empty.")
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
@click.option("--device", help="auto (an accelerator if there is one), cpu, or its name, such as cuda.")
@click.option("--cluster", shell_complete=complete("cluster"), help="A simulated cluster: a file or a name.")
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
@click.option("--dry-run", is_flag=True, help="Print settings, steps, memory and expected time; train nothing.")
@click.option("--debug", is_flag=True, help="Check as it runs that mixing conserves the mean.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(experiment: str, out: Path | None, *, as_json: bool, on: On, **options: Any) -> None:
    """Train EXPERIMENT and leave the model, its settings and a record of the run in a folder.

    EXPERIMENT is a TOML file, or the name of an included one: 'roundelay init --list' shows them.
    """
    path = find_file("experiment", experiment)
    if out is None and not options["dry_run"]:
        raise SettingsError("train: --out is missing; give the run's folder, as in --out runs/first")
    from roundelay.experiment.backends import RunOptions
    from roundelay.experiment.run_training import Changes, configure, train

    changes = Changes(
        options["data"], options["strategy"], options["learners"], options["cluster"], options["learners_per_node"],
        options["debug"], dict(config.parse_assignment(each) for each in options["assignments"])
        | ({"device": options["device"]} if options["device"] is not None else {}),
    )  # fmt: skip
    rendezvous, hosts, display = options["rendezvous"], options["hosts"], Display(as_json=as_json)
    how = RunOptions(
        slow=parse_slow(options["slow"]) if options["slow"] else None,
        heartbeat_timeout=options["heartbeat_timeout"],
        hosts=hosts_of(rendezvous, hosts, options["token"]) if rendezvous is not None or hosts > 1 else None,
        restarts=options["restarts"],
        shuffle_ties=options["shuffle_ties"],
    )
    if options["dry_run"]:
        from roundelay.cli.screen.dry_run_output import show_training

        show_training(path, changes, on=on, options=how, as_json=as_json)
        return
    assert out is not None
    settings = configure(path, changes, on=on, options=how)
    if options["faults"] or options["rejoins"] != REJOINS or options["heartbeat_timeout"] is not None:
        faults = plan_of(options["faults"], settings, options["rejoins"], options["heartbeat_timeout"])
        how = dataclasses.replace(how, faults=faults)
    with tell_how_to_resume(out):
        run = train(settings, out, on=on, options=how, observer=display)
    show(run, as_json=as_json)


@contextlib.contextmanager
def tell_how_to_resume(out: Path) -> Iterator[None]:
    """Say how a run continues if it is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        if (out / "settings.toml").exists() and not (out / "model.json").exists():
            click.echo(f"stopped; continue with: roundelay resume {shlex.quote(str(out))}", err=True)
        raise


def show(run: Run, *, as_json: bool) -> None:
    """Print what came of a run, on the rank that has it."""
    if not run.reported:
        return
    if as_json:
        click.echo(json.dumps(run.plain() | {"run": str(run.folder)}))
        return
    scores = "  ".join(figures(run.scores))
    click.echo(f"{run.folder}: {scores}  in {run.seconds:.3f} s ({run.clock} time)")
