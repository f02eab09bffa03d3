"""An experiment: one TOML file that says what is trained, how, by how many learners and for how long."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from roundelay import config
from roundelay.config import Count, Positive, Settings
from roundelay.errors import SettingsError, suggest
from roundelay.experiment.pretraining.pretrain_settings import PretrainSettings
from roundelay.optim.early_stopping import EarlyStopping
from roundelay.optim.natural_gradient import NaturalGradientSettings, precondition
from roundelay.optim.rate_scaling import RateSettings, multiply_rate
from roundelay.optim.schedules import Constant, ScheduleBase
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy
from roundelay.task import Task
from roundelay.tasks import TASKS
from roundelay.training.budget import Budget
from roundelay.training.loop import Job
from roundelay.training.training_settings import CheckpointSettings, GuardSettings, KeepSettings


@dataclass(frozen=True)
class BudgetSettings(Settings):
    """How long to train; counted for the whole cluster, so that it does not depend on the number of learners."""

    exclusive: ClassVar[tuple[str, ...]] = ("epochs", "minibatches")

    epochs: float | None = None
    minibatches: int | None = None
    """Instead of epochs."""
    evaluate_every: int | None = None
    """Minibatches between evaluations; by default an epoch."""
    warmup: int = 0
    """Minibatches that are trained synchronously before the strategy begins."""
    shards: Literal["common", "private"] = "common"
    """Whether learners claim minibatches from one budget or each has its own."""


@dataclass(frozen=True)
class BatchSettings(Settings):
    """How many frames are in a minibatch."""

    exclusive: ClassVar[tuple[str, ...]] = ("size", "total")

    size: int | None = None
    """Per learner."""
    total: int | None = None
    """Of all learners together, instead of ``size``."""


@dataclass(frozen=True)
class RecordSettings:
    """What is written down."""

    max_spans: int = 2000
    """So many spans of time of each learner are kept; totals count all."""
    order: bool = False
    """Write down the order in which things happened to each learner, for ``roundelay replay``."""


def assign(table: dict[str, Any], key: str, value: Any) -> None:
    """Set ``key`` in an experiment's table; it replaces the other way to say the same, as minibatches do epochs."""
    config.put(table, key, value)
    section, _, name = key.partition(".")
    kinds: dict[str, type[Settings]] = {"budget": BudgetSettings, "batch": BatchSettings}
    if section in kinds and name in kinds[section].exclusive:
        for other in {*kinds[section].exclusive} - {name}:
            table[section].pop(other, None)


@dataclass
class Experiment(Settings):
    """The settings of a run, complete: what `roundelay train` reads, and writes resolved into the run's folder."""

    task: dict[str, Any]
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "SGD", "lr": 0.1})
    strategy: Strategy = field(default_factory=Synchronous)
    schedule: ScheduleBase | None = None
    rate: RateSettings | None = None
    natural_gradient: NaturalGradientSettings | None = None
    pretrain: PretrainSettings | None = None
    budget: BudgetSettings = field(default_factory=lambda: BudgetSettings(epochs=1))
    batch: BatchSettings = field(default_factory=BatchSettings)
    cluster: Cluster | None = None
    """Of the simulator."""
    record: RecordSettings = field(default_factory=RecordSettings)
    keep: KeepSettings = field(default_factory=KeepSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    guard: GuardSettings | None = None
    learners: Count = 1
    threads: Count = 1
    clip: Positive | None = None
    seed: int = 0
    debug: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.strategy.check(self.learners)

    @classmethod
    def read(cls, path: Path, assignments: list[str] | None = None) -> Experiment:
        """Read an experiment, with ``key=value`` assignments on top."""
        table = config.read(path)
        for assignment in assignments or []:
            assign(table, *config.parse_assignment(assignment))
        return config.build(cls, table, str(path))

    def batch_size(self, default: int) -> int:
        """Return the frames in one learner's minibatch."""
        if self.batch.total is not None:
            if self.batch.total % self.learners:
                raise SettingsError(f"batch.total = {self.batch.total} does not divide by learners = {self.learners}")
            return self.batch.total // self.learners
        return self.batch.size or default

    def make_task(self) -> Task:
        """Make the task, with the minibatches and the seed that the experiment asks for."""
        settings = copy.deepcopy(self.task)
        name = str(settings.get("name"))
        if "seed" in getattr(TASKS.get(name) or TASKS.look_up(name), "__dataclass_fields__", {}):
            settings.setdefault("seed", self.seed)
        task = config.build_named(TASKS, settings, "task")
        default = getattr(task, "batch", None)
        size = self.batch_size(default) if isinstance(default, int) else None
        if size is None or size == default:
            return task
        return config.build_named(TASKS, settings | {"batch": size}, "task")

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """Make any optimizer of torch.optim by its name, with its own arguments."""
        settings = dict(self.optimizer)
        kinds = {
            name: kind
            for name, kind in vars(torch.optim).items()
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
        }
        name = settings.pop("name", "SGD")
        if name not in kinds:
            raise SettingsError(f"optimizer.name: unknown {suggest(str(name), kinds)}")
        known = set(inspect.signature(kinds[name].__init__).parameters) - {"self", "params"}
        for key in settings:
            if key not in known:
                raise SettingsError(f"optimizer: unknown key {suggest(key, known)}")
        try:
            return kinds[name](module.parameters(), **settings)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"optimizer: {error}") from error

    def make_preconditioned(self, module: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer, and switch natural gradients on where the experiment has them."""
        optimizer = self.make_optimizer(module)
        if self.natural_gradient is not None:
            precondition(module, optimizer, self.natural_gradient)
        return optimizer

    def optimizer_of(self, task: Task) -> Callable[[nn.Module], torch.optim.Optimizer]:
        """Return what makes the optimizer of a task's module, its rate scaled as the experiment asks for."""
        if self.rate is None:
            return self.make_preconditioned
        factor = self.rate.factor(self.learners, task.nominal_frames)
        return lambda module: multiply_rate(self.make_preconditioned(module), factor)

    def make_budget(self, task: Task) -> Budget:
        """Count the run's minibatches."""
        settings = self.budget
        total = settings.minibatches
        if total is None:
            total = round((1.0 if settings.epochs is None else settings.epochs) * task.minibatches_per_epoch)
        shards = self.learners if settings.shards == "private" else None
        frames = self.checkpoint.every_frames
        saves = max(1, frames // task.nominal_frames) if frames is not None else None
        return Budget(task.minibatches_per_epoch, total, settings.evaluate_every, settings.warmup, shards, saves)

    def make_schedule(self) -> ScheduleBase | None:
        """Make the schedule, which stops early if the experiment asks for it."""
        keep = self.keep
        if keep.patience is None:
            return self.schedule
        schedule = self.schedule or Constant()
        return EarlyStopping(schedule, keep.patience, metric=keep.metric, min_improvement=keep.min_improvement)

    def job(self) -> Job:
        """Make what a learner trains by."""
        task = self.make_task()
        if task.score_names and self.keep.metric not in (known := (*task.score_names, "distance")):
            raise SettingsError(f"keep.metric: unknown score {suggest(self.keep.metric, known)}")
        optimizer, schedule = self.optimizer_of(task), self.make_schedule()
        optimizer(task.make_module())  # complains now rather than on every learner
        return Job(
            task,
            self.strategy,
            self.make_budget(task),
            optimizer,
            schedule=(lambda: copy.deepcopy(schedule)) if schedule is not None else None,
            clip=self.clip,
            seed=self.seed,
            debug=self.debug,
            checkpoint=self.checkpoint,
            guard=self.guard or GuardSettings(),
            keep=self.keep,
        )

    def plain(self) -> dict[str, Any]:
        """Return all settings as plain values, to be built again elsewhere."""
        table = config.plain(self)
        assert isinstance(table, dict)
        return table

    def for_learners(self) -> dict[str, Any]:
        """Return what a learner needs: all but the simulated cluster."""
        return {name: value for name, value in self.plain().items() if name != "cluster"}

    @classmethod
    def of(cls, table: dict[str, Any]) -> Experiment:
        """Build from what `plain` gave."""
        return config.build(cls, table, "experiment")

    def replace(self, **changes: Any) -> Experiment:
        """Return a copy with some settings changed."""
        return dataclasses.replace(self, **changes)
