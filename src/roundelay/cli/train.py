"""``roundelay train``: one experiment, any strategy, any runtime."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import click

from roundelay import config
from roundelay.cli.fault_options import fault_options, parse_slow
from roundelay.cli.score_format import figures
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment, assign
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies import STRATEGIES

__all__ = ["command", "train"]

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
@click.option("--strategy", help="By its name; 'roundelay strategies' lists them.")
@click.option("--learners", type=int, help="How many train; servers come on top.")
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
@click.option("--hosts", type=int, default=1, show_default=True, help="How many hosts meet at the rendezvous.")
@click.option("--token", default="", help="A word that all hosts of this run give, against mix-ups of two runs.")
@click.option(
    "--restarts", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="When all learners are gone (under MPI: any), resume from the last checkpoint, N times at most.",
)  # fmt: skip
@fault_options
@click.option("--debug", is_flag=True, help="Check as it runs that mixing conserves the mean.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(experiment: Path, out: Path, **options: Any) -> None:
    """Train EXPERIMENT and leave the model, its settings and a record of the run in a folder."""
    settings = _settings(experiment, options)
    train(settings, out, options | {"resume": False})


def train(settings: Experiment, out: Path, options: dict[str, Any]) -> None:
    """Train, or go on training in a folder that has checkpoints, and report."""
    from roundelay.experiment.backends import RUNTIMES

    result = RUNTIMES[options["on"]](settings, out, options)
    if result is None:
        return
    if options["as_json"]:
        click.echo(json.dumps(result | {"run": str(out)}))
        return
    scores = "  ".join(figures(result["scores"]))
    click.echo(f"{out}: {scores}  in {result['seconds']:.3f} s ({result['clock']} time)")


def _settings(path: Path, options: dict[str, Any]) -> Experiment:
    """Put the command line's settings on top of the file's."""
    table = config.read(path)
    if options.get("data") is not None:
        table.setdefault("task", {})["data"] = str(options["data"].absolute())
    if options["strategy"] is not None:
        now = table.get("strategy", {})
        if now.get("name") != options["strategy"]:
            table["strategy"] = {"name": options["strategy"]}
    for name in ("learners", "debug"):
        if options[name]:
            table[name] = options[name]
    if options["learners"] is not None and options["learners"] < 1:
        raise SettingsError(f"--learners must be at least 1, not {options['learners']}")
    if options["cluster"] is not None:
        table["cluster"] = config.read(options["cluster"])
    if options["learners_per_node"] is not None:
        table.setdefault("cluster", {})["learners_per_node"] = options["learners_per_node"]
        if table.get("strategy", {}).get("name") == "hierarchical":
            table["strategy"]["learners_per_node"] = options["learners_per_node"]
    for assignment in options["assignments"]:
        assign(table, assignment)
    strategy = table.get("strategy", {})
    if strategy.get("name") == "hierarchical" and "learners_per_node" not in strategy:
        nodes = _nodes(table, options)
        if nodes is not None:
            strategy["learners_per_node"] = nodes
    for learner, factor in parse_slow(options["slow"], table.get("learners", 1)).items():
        table.setdefault("cluster", {}).setdefault("stragglers", []).append({"learner": learner, "factor": factor})
    return config.build(Experiment, table, str(path))


def _nodes(table: dict[str, Any], options: dict[str, Any]) -> int | list[int] | None:
    """Say how many learners are on each node: by the simulated cluster, the hosts, or what torchrun says."""
    learners = table.get("learners", 1)
    if options["on"] == "simulator":
        cluster = config.build(Cluster, table.get("cluster", {}), "cluster")
        return cluster.node_sizes(learners) if cluster.nodes > 1 or cluster.learners_per_node else None
    if options["hosts"] > 1:
        servers = config.build_named(STRATEGIES, table["strategy"], "strategy").servers
        edges = [max(0, (learners + servers) * k // options["hosts"] - servers) for k in range(options["hosts"] + 1)]
        return [b - a for a, b in itertools.pairwise(edges) if b > a]
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local) if local.isdecimal() and int(local) else None
