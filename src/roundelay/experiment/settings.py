"""An experiment: one TOML file that says what is trained, how, by how many learners and for how long."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import nn

from roundelay import config
from roundelay.config import Count, Natural, Positive, Range, Seed, Settings, limits
from roundelay.errors import SettingsError, suggest
from roundelay.experiment.pretraining.pretrain_settings import PretrainSettings
from roundelay.optim.default_rules import RuleChoice, RuleConditions, choose, is_adaptive
from roundelay.optim.early_stopping import EarlyStopping
from roundelay.optim.natural_gradient import NaturalGradientSettings, precondition
from roundelay.optim.rate_scaling import RateSettings, RisingRate, multiply_rate
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

    epochs: Annotated[float, limits(gt=0, largest=1e6)] | None = None
    minibatches: Count | None = None
    """Instead of epochs."""
    evaluate_every: Count | None = None
    """Minibatches between evaluations; by default an epoch."""
    warmup: Natural = 0
    """Minibatches that are trained synchronously before the strategy begins."""
    shards: Literal["common", "private"] = "common"
    """Whether learners claim minibatches from one budget or each has its own."""


@dataclass(frozen=True)
class BatchSettings(Settings):
    """How many frames are in a minibatch."""

    exclusive: ClassVar[tuple[str, ...]] = ("size", "total")

    size: Count | None = None
    """Per learner."""
    total: Count | None = None
    """Of all learners together, instead of ``size``."""


@dataclass(frozen=True)
class RecordSettings(Settings):
    """What is written down."""

    max_spans: Natural = 2000
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


OWN_RATE = ("scale", "multiplier", "warmup_frames")
"""Settings of ``rate`` by which the user says himself how the rate depends on the number of learners."""


BuildExperiment = Callable[[dict[str, Any], str], "Experiment"]
"""Builds the experiment of a table; the second argument names the table in messages."""


def build_experiment(table: dict[str, Any], where: str) -> Experiment:
    """Build an experiment of which all is in its table."""
    return config.build(Experiment, table, where)


def build_by_rule(table: dict[str, Any], where: str, build: BuildExperiment = build_experiment) -> Experiment:
    """Build an experiment of a table, with the default rule of its strategy on top if it has several learners.

    Only here is it known what the user has set.  The outcome is in the experiment's own settings, so that a run that is
    resumed, or a file of resolved settings, keeps it.
    """
    experiment = build(table, where)
    rate = dict(table.get("rate", {}))
    if experiment.learners == 1 or rate.get("rule", "auto") == "none" or "chosen" in rate:
        return experiment
    strategy = table.get("strategy", {})
    given, own = strategy if isinstance(strategy, dict) else {}, any(key in rate for key in OWN_RATE)
    choice, frames = experiment.choose_by_rule(given, own_rate=own)
    if not choice.line:
        return experiment
    if not own:
        rate["multiplier"] = choice.factor
    if choice.warmup_steps:
        rate |= {"warmup_frames": choice.warmup_steps * frames, "warmup_first": choice.warmup_first}
    plain = experiment.plain()
    plain["strategy"] = _merged(plain["strategy"], choice.settings)
    return build(plain | {"rate": rate | {"chosen": choice.line}}, where)


def _merged(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged


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
    learners: Annotated[int, limits(ge=1, largest=65536)] = 1
    threads: Annotated[int, limits(ge=1, largest=1024)] = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    """What losses and gradients are computed in, where torch's autocast does; weights stay float32."""
    device: str = "auto"
    """What learners compute on: an accelerator if there is one (``auto``), ``cpu``, or its name, such as ``cuda``."""
    clip: Positive | None = None
    seed: Seed = 0
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

    def choose_by_rule(self, given: Mapping[str, Any], *, own_rate: bool) -> tuple[RuleChoice, int]:
        """Apply the strategy's default rule, except to the settings ``given``; return frames per step of all too."""
        task = self.make_task()
        steps = self.make_budget(task).total // self.learners
        adaptive, common = is_adaptive(str(self.optimizer.get("name", "SGD"))), self.batch.total is not None
        conditions = RuleConditions(self.learners, steps, adaptive, common, own_rate)
        return choose(self.strategy, given, conditions), task.nominal_frames * self.learners

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
        if not isinstance(name, str) or name not in kinds:
            raise SettingsError(f"optimizer.name: unknown {suggest(str(name), kinds)}")
        known = dict(inspect.signature(kinds[name].__init__).parameters)
        for key, value in [*settings.items()]:
            if key not in known.keys() - {"self", "params"}:
                raise SettingsError(f"optimizer: unknown key {suggest(key, known.keys() - {'self', 'params'})}")
            _check_argument(key, value, known[key].default)
            if isinstance(value, int) and abs(value) >= 2**63:
                settings[key] = float(value)  # torch takes no integer of more than 64 bits
        _try_out(kinds[name], settings)
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
        if total < self.learners:
            said = f"{total} minibatch{'es' if total != 1 else ''}"
            raise SettingsError(
                f"learners = {self.learners}, but the budget has {said}; use at most {max(1, total)} learners, more "
                "epochs, or smaller minibatches"
            )
        return Budget(task.minibatches_per_epoch, total, settings.evaluate_every, settings.warmup, shards, saves)

    def make_schedule(self) -> ScheduleBase | None:
        """Make the schedule, which warms up and stops early if the experiment asks for it."""
        keep, rate, schedule = self.keep, self.rate, self.schedule
        if rate is not None and rate.warmup_frames:
            schedule = RisingRate(schedule or Constant(), rate.warmup_frames, rate.warmup_first)
        if keep.patience is None:
            return schedule
        schedule = schedule or Constant()
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
            device=self.device,
            precision=self.precision,
        )

    def origin(self) -> dict[str, Any]:
        """Return for ``run.json`` what made the experiment, if it has parts that no settings can hold."""
        return {}

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


_WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What torch raises for arguments of an optimizer that it cannot use."""


def _check_argument(name: str, value: Any, default: Any) -> None:
    """Raise if an argument of an optimizer is a number that torch cannot compute with, or no number and should be."""
    numeric = isinstance(default, float) or name == "lr"  # an integer, a flag or a pair is checked by torch
    if numeric or (isinstance(value, int | float | list) and not isinstance(value, bool)):
        usual = default if isinstance(default, int | float) else None
        Range(float, default=usual, only_numbers=numeric).check(f"optimizer.{name}", value)


def _try_out(kind: type[torch.optim.Optimizer], settings: dict[str, Any]) -> None:
    """Raise if an optimizer cannot take a step by gradients alone, as ``LBFGS`` cannot: tried on a few weights."""
    weights = nn.Parameter(torch.zeros(2, 2))  # takes no random number, as a layer would
    weights.grad = torch.zeros_like(weights)
    try:
        optimizer = kind([weights], **settings)
    except _WRONG as error:
        raise SettingsError(f"optimizer: {error}") from error
    try:
        optimizer.step()
    except _WRONG as error:
        raise SettingsError(f"optimizer: {kind.__name__} cannot step by gradients alone: {error}") from error
