"""Where ``roundelay train`` has its learners run: in the simulator, on processes, under MPI."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from torch import Tensor

from roundelay.cli.fault_options import HEARTBEAT_TIMEOUT, parse_slow, plan_of, refuse_faults, slowed
from roundelay.errors import SettingsError
from roundelay.experiment.pretraining.stage_runner import on_one_host, pretrain, pretrain_as_rank, pretrain_on_simulator
from roundelay.experiment.retry import run_with_retries
from roundelay.experiment.settings import Experiment
from roundelay.runs.run_folder import RunFolder
from roundelay.runtime import Runtime
from roundelay.runtimes.cluster import Cluster, Straggler
from roundelay.runtimes.processes.environment import World

__all__ = ["RUNTIMES", "learner"]

ENTRY = "roundelay.experiment.backends:learner"


def _announce(experiment: Experiment, about: dict[str, Any], *, as_json: bool) -> None:
    if not as_json:
        servers = f" and {_some(about['servers'], 'server')}" if about["servers"] else ""
        click.echo(
            f"{type(experiment.strategy).__name__} on {_some(about['learners'], 'learner')}{servers} ({about['on']}): "
            f"batch {about['batch']} per learner, {about['global_batch']} in all; "
            f"{about['minibatches']} minibatches, {about['epochs']:g} epochs",
            err=True,
        )


def _some(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _start(experiment: Experiment, out: Path, slow: dict[str, float], options: dict[str, Any]) -> tuple[RunFolder, int]:
    """Make the run's folder, unless it is resumed, and say what begins; return it, and how many minibatches it has."""
    from roundelay.experiment.execution import describe
    from roundelay.experiment.pretraining.layer_stages import check

    job = experiment.job()
    check(experiment)
    about = describe(experiment, job, options["on"]) | {"slow": slow, "options": {"slow": list(options["slow"])}}
    about |= {"shuffle_ties": options["shuffle_ties"]} if options["shuffle_ties"] is not None else {}
    folder = RunFolder(out)
    if not options["resume"]:
        folder.create(experiment, about)
    _announce(experiment, about, as_json=options["as_json"])
    return folder, job.budget.total


def on_simulator(experiment: Experiment, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Train in the simulator of this process."""
    from roundelay.cli.training_display import Display
    from roundelay.experiment.execution import train_simulated

    faults, shuffle = plan_of(options, experiment), options["shuffle_ties"]
    folder, total = _start(experiment, out, slowed(experiment.cluster, faults), options)
    pretrain_on_simulator(experiment, out, as_json=options["as_json"])
    with Display(total) as display:
        return train_simulated(experiment, folder, shuffle=shuffle, watch=display.watch, faults=faults)


def learner(runtime: Runtime, settings: dict[str, Any], start: dict[str, Tensor] | None = None) -> dict[str, Any]:
    """Train one learner in a process of its own, with a display on the first."""
    from roundelay.cli.training_display import Display
    from roundelay.experiment.execution import train_learner

    with Display(settings["minibatches"]) as display:
        return train_learner(runtime, settings, display.watch, start)


def _job(experiment: Experiment, out: Path, total: int) -> dict[str, Any]:
    return {"experiment": experiment.plain(), "folder": str(out.absolute()), "minibatches": total}


def _slow_cluster(slow: dict[int, float]) -> Cluster:
    """Return what ``--slow`` makes of this machine; the cluster of the settings is that of the simulator."""
    return Cluster(stragglers=[Straggler(learner, factor) for learner, factor in slow.items()])


def on_processes(experiment: Experiment, out: Path, options: dict[str, Any]) -> dict[str, Any] | None:
    """Train on processes of this host and perhaps others, or as one of those that torchrun or Slurm has started."""
    from roundelay.runs.chrome_trace import write_trace
    from roundelay.runtimes.processes import environment
    from roundelay.runtimes.processes import launcher as launch
    from roundelay.runtimes.processes.hosts import Hosts
    from roundelay.runtimes.processes.process_runtime import Options

    servers = experiment.strategy.servers
    slow = parse_slow(options["slow"], experiment.learners)
    settings = Options(
        slow={servers + learner: factor for learner, factor in slow.items()},
        max_spans=experiment.record.max_spans,
        threads=experiment.threads,
        heartbeat_timeout=options.get("heartbeat_timeout") or HEARTBEAT_TIMEOUT,
    )
    faults, world = plan_of(options, experiment), environment.find()
    told = slowed(_slow_cluster(slow), faults)
    if world is not None:
        refuse_faults(options, "torchrun or Slurm")
        resume = options["resume"] or (world.restarted and RunFolder(out).settings.exists())
        return _in_world(experiment, out, settings, world, told, options | {"resume": resume})
    hosts = None
    if options["rendezvous"] is not None:
        hosts = Hosts(options["rendezvous"], options["hosts"], token=options["token"])
        hosts.parse()
        on_one_host(experiment, out)
    elif options["hosts"] > 1:
        raise SettingsError(
            f"--hosts {options['hosts']}: also give --rendezvous HOST:PORT, an address of the first host"
        )
    folder, total = _start(experiment, out, told, options)
    size = experiment.learners + servers

    def launch_stage(entry: str, given: dict[str, Any], place: Path) -> list[Any]:
        return launch.run(entry, given, size=size, folder=place, options=settings, hosts=hosts)

    pretrain(experiment, out, launch_stage, as_json=options["as_json"])

    def attempt(lower: float) -> list[Any]:
        given = _job(experiment, out, total) | {"lr_factor": lower}
        return launch.run(ENTRY, given, size=size, folder=folder.path, options=settings, hosts=hosts, faults=faults)

    try:
        results = run_with_retries(attempt, out, experiment.guard, restarts=options["restarts"])
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
    slow: dict[str, float],
    options: dict[str, Any],
) -> dict[str, Any] | None:
    """Be one rank of a world that torchrun or Slurm has started: its size minus the servers are learners."""
    from roundelay.runs.chrome_trace import write_trace
    from roundelay.runtimes.processes import external_launch as given

    experiment = _fit_world(experiment, world.size)
    total = experiment.job().budget.total
    given.prepare(world, settings, lambda: _start(experiment, out, slow, options))

    stage_of = functools.partial(given.rank_of, world, settings)
    start = pretrain_as_rank(experiment, out, stage_of, as_json=options["as_json"])
    with given.rank_of(world, settings, out) as runtime:
        result = learner(runtime, _job(experiment, out, total), start)
    if world.local_rank == 0:
        write_trace(out / "record.jsonl", out / "trace.json")
    return result if world.rank == experiment.strategy.servers else None


def _fit_world(experiment: Experiment, size: int) -> Experiment:
    learners = size - experiment.strategy.servers
    if learners < 1:
        raise SettingsError(
            f"{size} ranks cannot train by {type(experiment.strategy).__name__}, "
            f"which takes {experiment.strategy.servers} for serving"
        )
    return experiment.replace(learners=learners)


def on_mpi(experiment: Experiment, out: Path, options: dict[str, Any]) -> dict[str, Any] | None:
    """Train under MPI: start all ranks, or be one of those that mpiexec has started."""
    from roundelay.runs.chrome_trace import write_trace
    from roundelay.runtimes.mpi import mpi_launcher as mpi_launch
    from roundelay.runtimes.mpi import mpi_runtime as mpi

    servers, spans = experiment.strategy.servers, experiment.record.max_spans
    slow = parse_slow(options["slow"], experiment.learners)
    refuse_faults(options, "MPI")
    if mpi.under_mpi():
        return _as_rank(experiment, out, slow, options)
    folder, total = _start(experiment, out, slowed(_slow_cluster(slow)), options)
    size, threads = experiment.learners + servers, experiment.threads

    def launch_stage(entry: str, given: dict[str, Any], place: Path) -> list[Any]:
        return mpi_launch.run(entry, given, size=size, folder=place, threads=threads, spans=spans, slow=slow)

    pretrain(experiment, out, launch_stage, as_json=options["as_json"])

    def attempt(lower: float) -> list[Any]:
        given = _job(experiment, out, total) | {"lr_factor": lower}
        return mpi_launch.run(ENTRY, given, size=size, folder=folder.path, threads=threads, spans=spans, slow=slow)

    results = run_with_retries(attempt, out, experiment.guard, restarts=options["restarts"])
    write_trace(folder.record, folder.path / "trace.json")
    result: dict[str, Any] = results[servers]
    return result


def _as_rank(
    experiment: Experiment, out: Path, slow: dict[int, float], options: dict[str, Any]
) -> dict[str, Any] | None:
    """Be one rank of a world that mpiexec has started."""
    from mpi4py import MPI

    from roundelay.runs.chrome_trace import write_trace
    from roundelay.runtimes.mpi import mpi_launcher as mpi_launch

    experiment = _fit_world(experiment, MPI.COMM_WORLD.size)
    total, spans, first = experiment.job().budget.total, experiment.record.max_spans, experiment.strategy.servers

    def launch_stage(entry: str, given: dict[str, Any], place: Path) -> list[Any]:
        return [mpi_launch.run_here(entry, given, folder=place, spans=spans, slow=slow)]

    def pretrain_and_train(runtime: Runtime, given: dict[str, Any]) -> dict[str, Any]:
        pretrain(experiment, out, launch_stage, as_json=options["as_json"] or MPI.COMM_WORLD.rank != first)
        return learner(runtime, given)

    result: dict[str, Any] = mpi_launch.run_here(
        pretrain_and_train,
        _job(experiment, out, total),
        folder=out,
        spans=spans,
        slow=slow,
        prepare=lambda: _start(experiment, out, slowed(_slow_cluster(slow)), options),
    )
    if MPI.COMM_WORLD.rank == 0:
        write_trace(out / "record.jsonl", out / "trace.json")
    return result if MPI.COMM_WORLD.rank == first else None


RUNTIMES: dict[str, Callable[[Experiment, Path, dict[str, Any]], dict[str, Any] | None]] = {
    "processes": on_processes,
    "simulator": on_simulator,
    "mpi": on_mpi,
}
"""By the name that ``--on`` gives: train there, and return the result, on the one rank that has it."""
