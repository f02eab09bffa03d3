"""Train an experiment: the one way that the command line, studies and programs take."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from roundelay import config
from roundelay.devices import describe_device
from roundelay.errors import SettingsError
from roundelay.experiment.backends import Backend, On, RunOptions, choose_backend, started_ranks
from roundelay.experiment.learner_entry import Result, Tensors
from roundelay.experiment.retry import run_with_retries
from roundelay.experiment.run_observer import RunObserver
from roundelay.experiment.settings import BuildExperiment, Experiment, assign, build_by_rule, build_experiment
from roundelay.files import remove_unfinished
from roundelay.included_files import Kind, find_file, read_extended
from roundelay.runs.run_folder import RunFolder
from roundelay.runtime import Clock
from roundelay.runtimes.cluster import Cluster, Straggler
from roundelay.runtimes.fault_plan import FaultPlan
from roundelay.strategies import STRATEGIES
from roundelay.task import Scores
from roundelay.training.loop import Job


@dataclass(frozen=True)
class Run:
    """What came of a run."""

    scores: Scores
    """Of the model that it leaves, on held-out data."""
    seconds: float
    clock: Clock
    """Whether ``seconds`` are virtual or wall time."""
    folder: Path | None = None
    """Where the model, the settings and the record are."""
    kept: dict[str, Any] | None = None
    """Of which evaluations the model is, unless it is that of the end."""
    rule: str = ""
    """What the strategy's default rule has chosen, and why; empty if nothing."""
    reported: bool = True
    """False on a rank of torchrun, Slurm or mpiexec if another rank has the result."""
    model: nn.Module | None = None
    """The model, if it was trained in this process."""
    totals: dict[str, dict[str, float]] | None = None
    """By learner of a simulated run: seconds by what they were spent on, bytes sent, and so on."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        said: dict[str, Any] = {"scores": self.scores, "seconds": self.seconds, "clock": self.clock}
        said |= {"rule": self.rule} if self.rule else {}
        return said | ({"kept": self.kept} if self.kept is not None else {})


@dataclass(frozen=True)
class Changes:
    """What goes on top of an experiment's file or table."""

    data: Path | None = None
    """A folder of prepared data."""
    strategy: str | None = None
    """Its name; settings of another strategy are dropped."""
    learners: int | None = None
    cluster: Path | Mapping[str, Any] | None = None
    """The simulated cluster: a TOML file or a table."""
    learners_per_node: int | None = None
    """Of hierarchical strategies and of the simulated cluster."""
    debug: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Any setting by its key, as ``optimizer.lr``; these go on top of the others."""


def train(
    experiment: Experiment | Path | str | Mapping[str, Any],
    out: Path | str | None = None,
    *,
    data: Path | None = None,
    strategy: str | None = None,
    learners: int | None = None,
    settings: Mapping[str, Any] | None = None,
    on: On = "processes",
    options: RunOptions | None = None,
    observer: RunObserver | None = None,
) -> Run:
    """Train an experiment, and leave the model, its settings and the record in the folder ``out``.

    ``experiment`` is an `Experiment`, the path of a TOML file, or a table; ``data``, ``strategy``, ``learners`` and
    ``settings`` (``{"optimizer.lr": 0.1}``) go on top of a file or a table.  Only the simulator can do without ``out``.
    Under torchrun, Slurm or mpiexec this process is one rank.
    """
    options = options or RunOptions()
    if not isinstance(experiment, Experiment):
        changes = Changes(data, strategy, learners, settings=settings or {})
        experiment = configure(experiment, changes, on=on, options=options)
    elif data is not None or strategy is not None or learners is not None or settings:
        raise SettingsError("train: change an Experiment by its method replace; a file or a table is changed here")
    return run(experiment, Path(out) if out is not None else None, on=on, options=options, observer=observer)


def configure(
    experiment: Path | str | Mapping[str, Any],
    changes: Changes,
    *,
    on: On = "processes",
    options: RunOptions | None = None,
    build: BuildExperiment = build_experiment,
) -> Experiment:
    """Return an experiment of a file or a table, with changes and the strategy's default rule on top of it."""
    options, where = options or RunOptions(), "experiment" if isinstance(experiment, Mapping) else str(experiment)
    table = _table(experiment)
    for name in {"task", "strategy", "cluster"} & table.keys():
        table[name] = _as_table(name, table[name])
    if changes.data is not None:
        table.setdefault("task", {})["data"] = str(Path(changes.data).absolute())
    if changes.strategy is not None:
        name = config.resolve(changes.strategy, Path())
        if table.get("strategy", {}).get("name") != name:
            table["strategy"] = {"name": name}
    if changes.learners is not None:
        config.ranges(Experiment)["learners"].check("--learners", changes.learners)
        table["learners"] = changes.learners
    if changes.debug:
        table["debug"] = True
    if changes.cluster is not None:
        table["cluster"] = _table(changes.cluster, "cluster")
    if changes.learners_per_node is not None:
        table.setdefault("cluster", {})["learners_per_node"] = changes.learners_per_node
        if table.get("strategy", {}).get("name") == "hierarchical":
            table["strategy"]["learners_per_node"] = changes.learners_per_node
    for key, value in changes.settings.items():
        assign(table, key, value)
    if (ranks := started_ranks(on)) is not None:
        servers = config.build_named(STRATEGIES, table.get("strategy", "synchronous"), f"{where}: strategy").servers
        table["learners"] = max(1, ranks - servers)  # as the backend has it; the rule depends on it
    strategy = _as_table("strategy", table.get("strategy", {}))
    if strategy.get("name") == "hierarchical" and "learners_per_node" not in strategy:
        nodes = _nodes(table, on, options)
        if nodes is not None:
            strategy["learners_per_node"] = nodes
    _slow_down(table, options.slow or {})
    return build_by_rule(table, where, build)


def _table(given: Path | str | Mapping[str, Any], kind: Kind = "experiment") -> dict[str, Any]:
    table: dict[str, Any] = (
        config.resolve(given, Path()) if isinstance(given, Mapping) else read_extended(find_file(kind, given), kind)
    )
    if kind == "experiment" and "strategies" in table and "task" not in table:
        where = "this table" if isinstance(given, Mapping) else str(given)
        raise SettingsError(f"{where}: a study, not an experiment; use roundelay compare for it")
    return table


def _as_table(name: str, given: Any) -> dict[str, Any]:
    """Return a table of the settings; a bare string is a name with default settings."""
    if not isinstance(given, dict | str):
        raise SettingsError(f"{name} must be a name or a table, not {given!r}")
    return given if isinstance(given, dict) else {"name": given}


def _slow_down(table: dict[str, Any], slow: Mapping[int, float]) -> None:
    """Let the simulated cluster have the stragglers too."""
    learners = _learners(table)
    for learner, factor in slow.items():
        if not 0 <= learner < learners or not 1 <= factor <= config.LARGEST_FLOAT:
            raise SettingsError(
                f"--slow {learner}={factor:g}: use a learner from 0 to {learners - 1} and a factor of at least 1"
            )
        stragglers = table.setdefault("cluster", {}).setdefault("stragglers", [])
        stragglers.append({"learner": learner, "factor": factor})


def _learners(table: dict[str, Any]) -> int:
    """Return the number of learners of a table."""
    config.ranges(Experiment)["learners"].check("learners", learners := table.get("learners", 1))
    assert isinstance(learners, int)
    return learners


def _nodes(table: dict[str, Any], on: On, options: RunOptions) -> int | list[int] | None:
    """Return how many learners are on each node: by the simulated cluster, the hosts, or what torchrun says."""
    learners = _learners(table)
    if on == "simulator":
        cluster = config.build(Cluster, table.get("cluster", {}), "cluster")
        return cluster.node_sizes(learners) if cluster.nodes > 1 or cluster.learners_per_node else None
    hosts = options.hosts.count if options.hosts is not None else 1
    if hosts > 1:
        servers = config.build_named(STRATEGIES, table["strategy"], "strategy").servers
        edges = [max(0, (learners + servers) * k // hosts - servers) for k in range(hosts + 1)]
        return [b - a for a, b in itertools.pairwise(edges) if b > a]
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(local) if local.isdecimal() and int(local) else None


# -- one run ----------------------------------------------------------------------------------------------------------


def run(
    experiment: Experiment,
    out: Path | None,
    *,
    on: On,
    options: RunOptions,
    observer: RunObserver | None = None,
    resumed: bool = False,
) -> Run:
    """Make the run's folder, unless it is resumed; pre-train, train, and write the trace."""
    backend = choose_backend(on, experiment, out, options, observer or RunObserver())
    experiment, watcher = backend.experiment, backend.observer if backend.observes else RunObserver()
    resumed = resumed or backend.continues
    _check_hosts(experiment, out, options)
    job, start = experiment.job(), None
    backend.prepare(lambda: _start(experiment, job, out, on, options, watcher, resumed=resumed))
    try:
        if experiment.pretrain is not None:
            start = _pretrain(backend, watcher)
        result = _observed(watcher, job.budget.total, lambda: _attempt(backend, job, start))
    except SettingsError:
        if not resumed and on == "processes" and out is not None and backend.retries:
            RunFolder(out).discard()
        raise
    if out is not None and backend.writes_trace:
        from roundelay.runs.chrome_trace import write_trace

        write_trace(out / "record.jsonl", out / "trace.json")
    if result is None or not backend.reports:
        return Run({}, math.nan, "wall", out, reported=False)
    rule = experiment.rate.chosen if experiment.rate is not None else ""
    scores, seconds, clock = result["scores"], result["seconds"], result["clock"]
    model, totals = result.get("model"), result.get("totals")
    return Run(scores, seconds, clock, out, result.get("kept"), rule, model=model, totals=totals)


def _attempt(backend: Backend, job: Job, start: Tensors | None) -> Result | None:
    """Train, again from the last checkpoint if that is allowed and this process can."""
    if not backend.retries or (backend.experiment.guard is None and not backend.restarts):
        return backend.launch(job, 1.0, start)
    return run_with_retries(
        lambda lr_factor: backend.launch(job, lr_factor, start),
        backend.out,
        backend.experiment.guard,
        restarts=backend.restarts,
    )


def _observed(observer: RunObserver, minibatches: int, work: Callable[[], Result | None]) -> Result | None:
    observer.began(minibatches)
    try:
        return work()
    finally:
        observer.ended()


def _pretrain(backend: Backend, observer: RunObserver) -> Tensors | None:
    """Run the stages that are left; return the weights that they came to in this process, if any did."""
    from roundelay.experiment.pretraining.layer_stages import is_wanted, resume

    if not is_wanted(backend.experiment, backend.out):
        return None
    stages, left = resume(backend.experiment, backend.out)
    for stage in left:
        total = stages.budget(stage).total
        about = _observed(observer, total, functools.partial(backend.launch_stage, stages, stage))
        assert about is not None
        observer.stage_ended(about)
    return stages.done if backend.in_process else None


def _check_hosts(experiment: Experiment, out: Path | None, options: RunOptions) -> None:
    if options.hosts is None:
        return
    options.hosts.parse()
    if experiment.pretrain is not None:
        from roundelay.experiment.pretraining.layer_stages import is_wanted

        if is_wanted(experiment, out):
            raise SettingsError(
                "pretrain: hosts of a --rendezvous have no files in common; pre-train on one host, or under "
                "torchrun, and give --set pretrain.weights=RUN/pretrain/model.safetensors"
            )


def _start(
    experiment: Experiment, job: Job, out: Path | None, on: On, options: RunOptions, observer: RunObserver,
    *, resumed: bool,
) -> None:  # fmt: skip
    """Make the run's folder, unless it is resumed, and say what begins."""
    if experiment.pretrain is not None:
        from roundelay.experiment.pretraining.layer_stages import check

        check(experiment)
    slow = options.slow or {}
    cluster = experiment.cluster if on == "simulator" else _slow_cluster(slow) if slow else None
    about = describe(experiment, job, on) | {"slow": slowed(cluster, options.faults)}
    about |= experiment.origin() | {"options": {"slow": [f"{learner}={factor:g}" for learner, factor in slow.items()]}}
    about |= {"shuffle_ties": options.shuffle_ties} if options.shuffle_ties is not None else {}
    if out is not None and resumed:
        remove_unfinished(out)
    elif out is not None:
        RunFolder(out).create(experiment, about)
    observer.started(about | {"strategy": type(experiment.strategy).__name__})


def describe(experiment: Experiment, job: Job, on: str) -> dict[str, Any]:
    """Return in numbers what is about to be trained, as ``run.json`` has it."""
    batch = job.task.nominal_frames
    return {
        "on": on,
        "learners": experiment.learners,
        "servers": job.strategy.servers,
        "batch": batch,
        "global_batch": batch * experiment.learners,
        "minibatches": job.budget.total,
        "epochs": round(job.budget.total / job.budget.minibatches_per_epoch, 3),
        "seed": experiment.seed,
        "device": describe_device(experiment.device, experiment.learners if on != "simulator" else 1),
    } | ({"rule": experiment.rate.chosen} if experiment.rate is not None and experiment.rate.chosen else {})


def _slow_cluster(slow: Mapping[int, float]) -> Cluster:
    """Return what ``slow`` makes of this machine; the cluster of the settings is that of the simulator."""
    return Cluster(stragglers=[Straggler(learner, factor) for learner, factor in slow.items()])


def slowed(cluster: Cluster | None, faults: FaultPlan | None = None) -> dict[str, float]:
    """Return how many times slower each learner that is slowed on purpose is, at worst, as ``run.json`` has it."""
    if faults is not None:
        cluster = faults.apply(cluster or Cluster())
    by_learner: dict[int, list[tuple[float, float, float]]] = {}
    for each in cluster.stragglers if cluster is not None else ():
        if each.learner >= 0:  # a server counts backwards
            by_learner.setdefault(each.learner, []).append((each.begin_seconds, each.end_seconds, each.factor))
    return {
        str(learner): max(math.prod(factor for begin, end, factor in own if begin <= now < end) for now, _, _ in own)
        for learner, own in sorted(by_learner.items())
    }
