"""Where learners run: in the simulator, on processes, under MPI, or as one rank of another launcher.

A backend starts all learners of a job, or is one of them, and returns what the first learner returned.  What happens
before and after it is the same for all: `roundelay.experiment.run_training`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from roundelay.errors import SettingsError
from roundelay.experiment.learner_entry import ENTRY, LearnerJob, Result, Tensors, finish, learn_here, start_weights
from roundelay.experiment.run_observer import ObservedRecord, RunObserver, follow
from roundelay.experiment.settings import Experiment
from roundelay.runs.run_folder import RunFolder
from roundelay.runtime import Runtime
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.fault_plan import FaultPlan
from roundelay.training.loop import Job

if TYPE_CHECKING:
    from roundelay.experiment.pretraining.layer_stages import Pretraining
    from roundelay.runtimes.processes.hosts import Hosts

On = Literal["processes", "simulator", "mpi"]
HEARTBEAT_SECONDS = 30.0
REJOINS = 3


@dataclass(frozen=True)
class RunOptions:
    """How a run is run: what is no part of its experiment."""

    slow: dict[int, float] | None = None
    """How many times slower learners are made, by their number, on processes and under MPI."""
    faults: FaultPlan | None = None
    """Faults to inject, in the simulator and on processes; by default none, and a dead learner is restarted 3 times."""
    heartbeat_timeout: float | None = None
    """Seconds without a heartbeat after which a learner is lost; by default 30, or the simulated cluster's own."""
    hosts: Hosts | None = None
    """Several hosts at one rendezvous; the same call is made on each of them."""
    restarts: int = 0
    """How often a run that has lost all its learners (under MPI: any) is resumed."""
    shuffle_ties: int | None = None
    """In the simulator: break ties of simultaneous events at random, by this seed."""


class Backend:
    """Runs jobs; ``experiment`` is what it can run of the one it was given."""

    writes_trace = True
    """Whether this process writes the trace of the finished run."""
    observes = True
    """Whether this process tells the observer."""
    reports = True
    """Whether this process has the result."""
    retries = True
    """Whether this process can start a failed job again."""
    in_process = True
    """Whether stages of pre-training run in this process, which then has what they came to."""
    continues = False
    """Whether another launcher has started this job before: the run is resumed."""

    def __init__(self, experiment: Experiment, out: Path | None, options: RunOptions, observer: RunObserver) -> None:
        self.experiment, self.out, self.options, self.observer = experiment, out, options, observer

    @property
    def restarts(self) -> int:
        """How often a run that has lost its learners is resumed."""
        return self.options.restarts

    @property
    def folder(self) -> Path:
        """The run's folder, which all but the simulator need."""
        assert self.out is not None
        return self.out

    def start_weights(self, pretrained: Tensors | None) -> Tensors | None:
        """Return the weights that learners start with: ``pretrained`` in this process, or before."""
        known = pretrained is not None or self.experiment.pretrain is None
        return pretrained if known else start_weights(self.experiment, self.out)

    def prepare(self, start: Callable[[], object]) -> None:
        """Call ``start`` before any learner begins, on one process of all."""
        start()

    def launch(self, job: Job, lr_factor: float, start: Tensors | None) -> Result | None:
        """Train all learners, or one rank; ``start`` is what was pre-trained in this process."""
        raise NotImplementedError

    def launch_stage(self, stages: Pretraining, stage: int) -> Result:
        """Run one stage of pre-training; ``stages`` has absorbed it afterwards, or its files are in the folder."""
        raise NotImplementedError


class Simulator(Backend):
    """A simulated cluster in this process."""

    def __init__(self, experiment: Experiment, out: Path | None, options: RunOptions, observer: RunObserver) -> None:
        whole = experiment if experiment.cluster is not None else experiment.replace(cluster=Cluster())
        super().__init__(whole, out, options, observer)
        assert whole.cluster is not None
        whole.cluster.check(whole.learners, whole.strategy.servers)

    @property
    def restarts(self) -> int:
        """Never: what is lost there is lost as the settings say."""
        return 0

    def launch(self, job: Job, lr_factor: float, start: Tensors | None) -> Result:
        from roundelay.runtimes.simulator.simulation import simulate

        experiment, faults = self.experiment, self.options.faults
        assert experiment.cluster is not None
        torch.set_num_threads(experiment.threads)
        attempt = job.attempt(self.out, lr_factor=lr_factor, start=self.start_weights(start))
        path = self.out / "record.jsonl" if self.out is not None else None
        record = ObservedRecord(path, self.observer, clock="virtual", spans=experiment.record.max_spans)
        try:
            outcome = simulate(
                attempt.training,
                experiment.cluster if faults is None else faults.apply(experiment.cluster),
                learners=experiment.learners,
                servers=experiment.strategy.servers,
                seed=experiment.seed,
                record=record,
                shuffle=self.options.shuffle_ties,
            )
        finally:
            record.abandon()
            attempt.close()
        if faults is not None:
            faults.check(outcome.fired, outcome.seconds)
        first = next(training for training in outcome.finished if not training.learner.is_server)
        result = finish(first, outcome.consensus, self.out, seconds=outcome.seconds)
        return result | {"model": first.learner.module, "totals": {k: dict(each) for k, each in record.totals.items()}}

    def launch_stage(self, stages: Pretraining, stage: int) -> Result:
        return stages.simulate(stage, self.out, observer=self.observer)


class Launched(Backend):
    """Learners that this process starts, each in a process of its own."""

    in_process = False

    def _run(self, job: LearnerJob, folder: Path) -> list[Any]:
        raise NotImplementedError

    def _results(self, folder: Path, *, lr_factor: float = 1.0, stage: int | None = None) -> list[Any]:
        """Return what each process returned."""
        job = LearnerJob(
            experiment=self.experiment.for_learners(),
            folder=str(self.folder.absolute()),
            several_hosts=True,
            lr_factor=lr_factor,
            stage=stage,
        )
        with follow(folder, self.observer):
            return self._run(job, folder)

    def launch(self, job: Job, lr_factor: float, start: Tensors | None) -> Result | None:
        results = self._results(self.folder, lr_factor=lr_factor)
        return next((result for result in results[self.experiment.strategy.servers :] if result is not None), None)

    def launch_stage(self, stages: Pretraining, stage: int) -> Result:
        folder = self.folder / "pretrain" / str(stage + 1)
        folder.mkdir(parents=True, exist_ok=True)
        return next(result for result in self._results(folder, stage=stage) if result is not None)


class Processes(Launched):
    """Processes of this host, and perhaps of others."""

    def _run(self, job: LearnerJob, folder: Path) -> list[Any]:
        from roundelay.runtimes.processes import launcher

        experiment, options = self.experiment, self.options
        job["several_hosts"] = options.hosts is not None
        servers, settings = experiment.strategy.servers, _process_options(experiment, options)
        faults = (options.faults or FaultPlan(servers=servers, rejoins=REJOINS)) if job["stage"] is None else None
        size = experiment.learners + servers
        return launcher.run(ENTRY, job, size=size, folder=folder, options=settings, hosts=options.hosts, faults=faults)


def _process_options(experiment: Experiment, options: RunOptions) -> Any:
    from roundelay.runtimes.processes.options import Options

    return Options(
        slow={experiment.strategy.servers + learner: factor for learner, factor in (options.slow or {}).items()},
        max_spans=experiment.record.max_spans,
        threads=experiment.threads,
        heartbeat_timeout=options.heartbeat_timeout or HEARTBEAT_SECONDS,
    )


class Mpi(Launched):
    """Ranks that this process starts by mpiexec."""

    def _run(self, job: LearnerJob, folder: Path) -> list[Any]:
        from roundelay.runtimes.mpi import mpi_launcher

        experiment = self.experiment
        size, spans = experiment.learners + experiment.strategy.servers, experiment.record.max_spans
        return mpi_launcher.run(
            ENTRY, {**job}, size=size, folder=folder, threads=experiment.threads, spans=spans, slow=self.options.slow
        )


class Rank(Backend):
    """This process is one rank of a world that another launcher has started: the world's size says how many learn."""

    def __init__(
        self, experiment: Experiment, out: Path | None, options: RunOptions, observer: RunObserver,
        *, rank: int, size: int,
    ) -> None:  # fmt: skip
        servers = experiment.strategy.servers
        if size <= servers:
            kind = type(experiment.strategy).__name__
            raise SettingsError(f"{size} ranks cannot train by {kind}, which takes {servers} for serving")
        super().__init__(experiment.replace(learners=size - servers), out, options, observer)
        self.observes, self.reports, self.retries = rank == 0, rank == servers, False

    def _as_rank(self, work: Callable[[Runtime], Result], folder: Path, part: str) -> Result:
        """Call ``work`` with this rank's runtime; ``part`` names what is run."""
        raise NotImplementedError

    def launch(self, job: Job, lr_factor: float, start: Tensors | None) -> Result:
        torch.set_num_threads(self.experiment.threads)
        attempt = job.attempt(self.folder, lr_factor=lr_factor, start=self.start_weights(start))
        with follow(self.folder, self.observer if self.observes else None):
            return self._as_rank(
                lambda runtime: learn_here(runtime, self.experiment, attempt, self.folder, compare=True),
                self.folder,
                "run",
            )

    def launch_stage(self, stages: Pretraining, stage: int) -> Result:
        part = f"pretrain/{stage + 1}"
        with follow(self.folder / part, self.observer if self.observes else None):
            return self._as_rank(
                lambda runtime: stages.train(stage, runtime, self.folder), self.folder / part, part
            )  # fmt: skip


class ExternalRank(Rank):
    """A rank of torchrun or Slurm."""

    def __init__(
        self, experiment: Experiment, out: Path | None, options: RunOptions, observer: RunObserver, world: Any
    ) -> None:
        super().__init__(experiment, out, options, observer, rank=world.rank, size=world.size)
        self.world, self.settings = world, _process_options(self.experiment, options)
        self.writes_trace = world.local_rank == 0
        self.continues = world.restarted and RunFolder(self.folder).settings.exists()

    def prepare(self, start: Callable[[], object]) -> None:
        from roundelay.runtimes.processes import external_launch

        external_launch.prepare(self.world, self.settings, start)

    def _as_rank(self, work: Callable[[Runtime], Result], folder: Path, part: str) -> Result:
        from roundelay.runtimes.processes import external_launch

        with external_launch.rank_of(self.world, self.settings, folder, part) as runtime:
            return work(runtime)


class MpiRank(Rank):
    """A rank of the user's own mpiexec."""

    def __init__(self, experiment: Experiment, out: Path | None, options: RunOptions, observer: RunObserver) -> None:
        from mpi4py import MPI

        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        super().__init__(experiment, out, options, observer, rank=rank, size=size)
        self.writes_trace = rank == 0

    def prepare(self, start: Callable[[], object]) -> None:
        from roundelay.runtimes.mpi import mpi_launcher

        mpi_launcher.run_here(lambda runtime, _: None, {}, prepare=start)

    def _as_rank(self, work: Callable[[Runtime], Result], folder: Path, part: str) -> Result:
        from roundelay.runtimes.mpi import mpi_launcher

        folder.mkdir(parents=True, exist_ok=True)
        spans, slow = self.experiment.record.max_spans, self.options.slow
        result: Result = mpi_launcher.run_here(
            lambda runtime, _: work(runtime), {}, folder=folder, spans=spans, slow=slow
        )  # fmt: skip
        return result


def choose_backend(
    on: On, experiment: Experiment, out: Path | None, options: RunOptions, observer: RunObserver
) -> Backend:
    """Return where to run: as one rank, if torchrun, Slurm or mpiexec has started this process."""
    if on == "simulator":
        return Simulator(experiment, out, options, observer)
    if out is None:
        raise SettingsError(f"on {on}: give out, a folder for the run, which its learners write into")
    if on == "mpi":
        from roundelay.runtimes.mpi import mpi_runtime

        _refuse_faults(options, "MPI")
        under = mpi_runtime.under_mpi()
        return (MpiRank if under else Mpi)(experiment, out, options, observer)
    from roundelay.runtimes.processes import environment

    world = environment.find()
    if world is None:
        return Processes(experiment, out, options, observer)
    _refuse_faults(options, "torchrun or Slurm")
    return ExternalRank(experiment, out, options, observer, world)


def started_ranks(on: On) -> int | None:
    """Return how many ranks torchrun, Slurm or mpiexec has started; None if we start the learners."""
    if on == "mpi":
        from roundelay.runtimes.mpi import mpi_runtime

        if not mpi_runtime.under_mpi():
            return None
        mpi_runtime.require()
        from mpi4py import MPI

        return int(MPI.COMM_WORLD.size)
    from roundelay.runtimes.processes import environment

    world = environment.find() if on == "processes" else None
    return world.size if world is not None else None


def _refuse_faults(options: RunOptions, where: str) -> None:
    if options.faults is not None and options.faults.events:
        raise SettingsError(f"--faults: learners that {where} has started are not ours to disturb; use its own means")
