"""``roundelay train``: one experiment, any strategy, any runtime."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import click
import torch

from roundelay import config
from roundelay.cli.faults import PATIENCE_SECONDS, chaos_of, fault_options, refuse_chaos, slowed
from roundelay.cli.figures import figures
from roundelay.cli.pretraining import on_one_host, pretrain, pretrain_as_rank, pretrain_on_simulator
from roundelay.errors import SettingsError
from roundelay.experiment import Experiment, assign
from roundelay.guarding import persist
from roundelay.run import RunFolder
from roundelay.runtime import Runtime
from roundelay.runtimes.cluster import Cluster, Straggler
from roundelay.runtimes.environment import World
from roundelay.strategies import STRATEGIES

__all__ = ["command", "learner", "train"]

EPILOG = """\b
Examples:
  roundelay train experiments/tiny.toml --out runs/tiny
  roundelay train experiments/an4-dnn.toml --data data/an4 --out runs/an4-dnn
  roundelay train experiments/tiny.toml --out runs/two --learners 2 --strategy averaging
  roundelay train experiments/tiny.toml --out runs/sim --on simulator --learners 16 --slow 3=10
  roundelay train experiments/tiny.toml --out runs/chaos --learners 4 --chaos "kill 1 at 1s; stop 2 for 1s at 2s"
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
    on: str = options["on"]
    result: dict[str, Any] | None
    if on == "simulator":
        result = _on_simulator(settings, out, options)
    elif on == "mpi":
        result = _on_mpi(settings, out, options)
    else:
        result = _on_processes(settings, out, options)
    if result is not None:
        _report(result, out, as_json=options["as_json"])


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
    for learner, factor in _slow(options["slow"], table.get("learners", 1)).items():
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


def _slow(given: tuple[str, ...], learners: int) -> dict[int, float]:
    slow: dict[int, float] = {}
    for each in given:
        learner, _, factor = each.partition("=")
        try:
            slow[int(learner)] = float(factor)
        except ValueError:
            raise SettingsError(f"--slow {each}: expected LEARNER=FACTOR, as in --slow 3=10") from None
        if not 0 <= int(learner) < learners or float(factor) < 1:
            raise SettingsError(
                f"--slow {each}: a learner from 0 to {learners - 1} and a factor of at least 1 would do"
            )
    return slow


def _announce(experiment: Experiment, about: dict[str, Any], *, as_json: bool) -> None:
    if not as_json:
        servers = f" and {about['servers']} servers" if about["servers"] else ""
        click.echo(
            f"{type(experiment.strategy).__name__} on {about['learners']} learners{servers} ({about['on']}): "
            f"batch {about['batch']} per learner, {about['global_batch']} in all; "
            f"{about['minibatches']} minibatches, {about['epochs']:g} epochs",
            err=True,
        )


def _start(
    experiment: Experiment,
    out: Path,
    on: str,
    *,
    slow: dict[str, float],
    as_json: bool,
    resume: bool = False,
    shuffle: int | None = None,
) -> tuple[RunFolder, int]:
    from roundelay.pretraining import check
    from roundelay.train import describe

    job = experiment.job()
    check(experiment)
    about = describe(experiment, job, on) | {"slow": slow}
    about |= {"shuffle_ties": shuffle} if shuffle is not None else {}
    folder = RunFolder(out)
    if not resume:
        folder.create(experiment, about)
    _announce(experiment, about, as_json=as_json)
    return folder, job.budget.total


def _on_simulator(experiment: Experiment, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    from roundelay.cli.display import Display
    from roundelay.train import train_simulated

    as_json, resume, shuffle = options["as_json"], options["resume"], options["shuffle_ties"]
    chaos = chaos_of(options, experiment)
    slow = slowed(experiment.cluster, chaos)
    folder, total = _start(experiment, out, "simulator", slow=slow, as_json=as_json, resume=resume, shuffle=shuffle)
    pretrain_on_simulator(experiment, out, as_json=options["as_json"])
    with Display(total) as display:
        return train_simulated(experiment, folder, shuffle=shuffle, watch=display.watch, chaos=chaos)


def learner(runtime: Runtime, settings: dict[str, Any], start: dict[str, torch.Tensor] | None = None) -> dict[str, Any]:
    """Train one learner in a process of its own, with a display on the first."""
    from roundelay.cli.display import Display
    from roundelay.train import train_learner

    with Display(settings["minibatches"]) as display:
        return train_learner(runtime, settings, display.watch, start)


def _report(result: dict[str, Any], out: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result | {"run": str(out)}))
        return
    scores = "  ".join(figures(result["scores"]))
    click.echo(f"{out}: {scores}  in {result['seconds']:.3f} s ({result['clock']} time)")


def _job(experiment: Experiment, out: Path, total: int) -> dict[str, Any]:
    return {"experiment": experiment.plain(), "folder": str(out.absolute()), "minibatches": total}


def _slow_cluster(slow: dict[int, float]) -> Cluster:
    """Return what ``--slow`` makes of this machine; the cluster of the settings is that of the simulator."""
    return Cluster(stragglers=[Straggler(learner, factor) for learner, factor in slow.items()])


def _on_processes(experiment: Experiment, out: Path, options: dict[str, Any]) -> dict[str, Any] | None:
    from roundelay.report.trace import write_trace
    from roundelay.runtimes import environment, launch
    from roundelay.runtimes.hosts import Hosts
    from roundelay.runtimes.processes import Options

    servers = experiment.strategy.servers
    slow = _slow(options["slow"], experiment.learners)
    settings = Options(
        slow={servers + learner: factor for learner, factor in slow.items()},
        spans=experiment.record.spans,
        threads=experiment.threads,
        patience_seconds=options.get("patience") or PATIENCE_SECONDS,
    )
    chaos, world = chaos_of(options, experiment), environment.find()
    told = slowed(_slow_cluster(slow), chaos)
    if world is not None:
        refuse_chaos(options, "torchrun or Slurm")
        resume = options["resume"] or (world.restarted and RunFolder(out).settings.exists())
        return _in_world(experiment, out, settings, world, slow=told, as_json=options["as_json"], resume=resume)
    hosts = None
    if options["rendezvous"] is not None:
        hosts = Hosts(options["rendezvous"], options["hosts"], token=options["token"])
        hosts.parse()
        on_one_host(experiment, out)
    elif options["hosts"] > 1:
        raise SettingsError(
            f"--hosts {options['hosts']}: also give --rendezvous HOST:PORT, an address of the first host"
        )
    as_json, resume = options["as_json"], options["resume"]
    folder, total = _start(experiment, out, "processes", slow=told, as_json=as_json, resume=resume)
    size = experiment.learners + servers

    def launch_stage(entry: str, given: dict[str, Any], place: Path) -> list[Any]:
        return launch.run(entry, given, size=size, folder=place, options=settings, hosts=hosts)

    pretrain(experiment, out, launch_stage, as_json=options["as_json"])

    def attempt(lower: float) -> list[Any]:
        given = _job(experiment, out, total) | {"lower": lower}
        entry = "roundelay.cli.train:learner"
        return launch.run(entry, given, size=size, folder=folder.path, options=settings, hosts=hosts, chaos=chaos)

    try:
        results = persist(attempt, out, experiment.guard, restarts=options["restarts"])
    except SettingsError:
        if not options["resume"]:
            folder.discard()
        raise
    write_trace(folder.record, folder.path / "trace.json")
    return next((result for result in results[servers:] if result is not None), None)


def _in_world(
    experiment: Experiment,
    out: Path,
    settings: Any,
    world: World,
    *,
    slow: dict[str, float],
    as_json: bool,
    resume: bool,
) -> dict[str, Any] | None:
    """Be one rank of a world that torchrun or Slurm has started: its size minus the servers are learners."""
    from roundelay.runtimes.processes import from_environment

    experiment = _fit_world(experiment, world.size)
    total = experiment.job().budget.total
    if world.rank == 0:
        _start(experiment, out, "processes", slow=slow, as_json=as_json, resume=resume)

    def runtime_of(part: str) -> Runtime:
        runtime = from_environment(settings, folder=None, part=part)
        assert runtime is not None
        return runtime

    start = pretrain_as_rank(experiment, out, runtime_of, as_json=as_json)
    result = learner(runtime_of("run"), _job(experiment, out, total), start)
    return result if world.rank == experiment.strategy.servers else None


def _fit_world(experiment: Experiment, size: int) -> Experiment:
    learners = size - experiment.strategy.servers
    if learners < 1:
        raise SettingsError(
            f"{size} ranks cannot train by {type(experiment.strategy).__name__}, "
            f"which takes {experiment.strategy.servers} for serving"
        )
    return experiment.replace(learners=learners)


def _on_mpi(experiment: Experiment, out: Path, options: dict[str, Any]) -> dict[str, Any] | None:
    from roundelay.report.trace import write_trace
    from roundelay.runtimes import mpi, mpi_launch

    servers, spans = experiment.strategy.servers, experiment.record.spans
    slow = _slow(options["slow"], experiment.learners)
    refuse_chaos(options, "MPI")
    if mpi.under_mpi():
        return _as_rank(experiment, out, slow, as_json=options["as_json"], resume=options["resume"])
    told = slowed(_slow_cluster(slow))
    folder, total = _start(experiment, out, "mpi", slow=told, as_json=options["as_json"], resume=options["resume"])
    size, threads = experiment.learners + servers, experiment.threads

    def launch_stage(entry: str, given: dict[str, Any], place: Path) -> list[Any]:
        return mpi_launch.run(entry, given, size=size, folder=place, threads=threads, spans=spans, slow=slow)

    pretrain(experiment, out, launch_stage, as_json=options["as_json"])

    def attempt(lower: float) -> list[Any]:
        given = _job(experiment, out, total) | {"lower": lower}
        entry = "roundelay.cli.train:learner"
        return mpi_launch.run(entry, given, size=size, folder=folder.path, threads=threads, spans=spans, slow=slow)

    results = persist(attempt, out, experiment.guard, restarts=options["restarts"])
    write_trace(folder.record, folder.path / "trace.json")
    result: dict[str, Any] = results[servers]
    return result


def _as_rank(
    experiment: Experiment, out: Path, slow: dict[int, float], *, as_json: bool, resume: bool
) -> dict[str, Any] | None:
    """Be one rank of a world that mpiexec has started."""
    from mpi4py import MPI

    from roundelay.report.trace import write_trace
    from roundelay.runtimes import mpi_launch

    experiment = _fit_world(experiment, MPI.COMM_WORLD.size)
    total, spans, first = experiment.job().budget.total, experiment.record.spans, experiment.strategy.servers

    def launch_stage(entry: str, given: dict[str, Any], place: Path) -> list[Any]:
        return [mpi_launch.run_here(entry, given, folder=place, spans=spans, slow=slow)]

    def pretrain_and_train(runtime: Runtime, given: dict[str, Any]) -> dict[str, Any]:
        pretrain(experiment, out, launch_stage, as_json=as_json or MPI.COMM_WORLD.rank != first)
        return learner(runtime, given)

    result: dict[str, Any] = mpi_launch.run_here(
        pretrain_and_train,
        _job(experiment, out, total),
        folder=out,
        spans=spans,
        slow=slow,
        prepare=lambda: _start(
            experiment, out, "mpi", slow=slowed(_slow_cluster(slow)), as_json=as_json, resume=resume
        ),
    )
    if MPI.COMM_WORLD.rank == 0:
        write_trace(out / "record.jsonl", out / "trace.json")
    return result if MPI.COMM_WORLD.rank == first else None
