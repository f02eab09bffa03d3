"""An experiment whose task, optimizer and schedule are objects of a program, not settings."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from roundelay import config
from roundelay.config import Table
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.optim.rate_scaling import multiply_rate
from roundelay.optim.schedules import ScheduleBase
from roundelay.task import Task
from roundelay.tasks.model_task import ModelTask

OptimizerOf = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class OwnParts:
    """What settings cannot hold."""

    task: Task
    optimizer: OptimizerOf | None = None
    """Makes the optimizer; None: the settings do."""
    rate: float = 0.0
    """The learning rate of that optimizer; settings with another rate change it."""
    schedule: ScheduleBase | None = None
    origin: Table = field(default_factory=dict)
    """Where the objects come from, for ``run.json``."""

    def settings(self) -> Table:
        """Return the task and the optimizer as plain values, for people and for digests."""
        table: Table = {"task": _about(self.task)}
        if self.optimizer is not None:
            table["optimizer"] = _describe(self.optimizer(self.task.make_module()))
        return table


class OwnExperiment(Experiment):
    """An experiment with `OwnParts`; it trains in the process that made it."""

    parts: OwnParts

    @classmethod
    def around(cls, experiment: Experiment, parts: OwnParts) -> OwnExperiment:
        """Return the experiment with these parts."""
        made = cls(**{each.name: getattr(experiment, each.name) for each in dataclasses.fields(experiment)})
        made.parts = parts
        return made

    def replace(self, **changes: Any) -> OwnExperiment:
        """Return a copy with some settings changed."""
        return OwnExperiment.around(dataclasses.replace(self, **changes), self.parts)

    def make_task(self) -> Task:
        """Return the task; a model and the order of its minibatches depend on the experiment's seed."""
        task = self.parts.task
        return task.with_seed(self.seed) if isinstance(task, ModelTask) else task

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer, at the rate of the settings."""
        if self.parts.optimizer is None:
            return super().make_optimizer(module)
        made, rate = self.parts.optimizer(module), self.optimizer.get("lr", self.parts.rate)
        return multiply_rate(made, rate / self.parts.rate) if rate != self.parts.rate else made

    def make_schedule(self) -> ScheduleBase | None:
        """Make the schedule, which stops early if the settings ask for it."""
        if self.parts.schedule is None:
            return super().make_schedule()
        plain = dataclasses.replace(self, schedule=copy.deepcopy(self.parts.schedule))
        return Experiment.make_schedule(plain)

    def origin(self) -> Table:
        """Return where the objects come from."""
        return self.parts.origin


def own_parts(task: Task, optimizer: Any, schedule: Any, origin: Table | None = None) -> tuple[OwnParts, Table]:
    """Return the parts, and the settings that say the same as far as settings can.

    ``optimizer`` is a table (``{"name": "SGD", "lr": 0.1}``), an optimizer's class or a partial of it, which is called
    with the model's parameters, or a function of the model; ``schedule`` a table, or a function of the frames trained.
    """
    table: Table = {}
    factory, rate, own_schedule = None, 0.0, None
    if isinstance(optimizer, Mapping):
        table["optimizer"] = dict(optimizer)
    elif optimizer is not None:
        factory = _factory(optimizer)
        rate = float(_checked(factory, task.make_module()).param_groups[0]["lr"])
    if isinstance(schedule, Mapping | str):
        table["schedule"] = config.plain(config.build_named(ScheduleBase.registry, schedule, "schedule"))
    elif schedule is not None:
        own_schedule = schedule if hasattr(schedule, "on_evaluation") else _Factor(schedule)
    parts = OwnParts(task, factory, rate, own_schedule, origin or {})
    return parts, table | parts.settings()


def _factory(given: Any) -> OptimizerOf:
    if not callable(given):
        raise SettingsError(f"optimizer: must be a table or a function of the model, not {given!r}")
    kind = given.func if isinstance(given, functools.partial) else given
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
        return lambda module: given(module.parameters())
    made: OptimizerOf = given
    return made


def _checked(factory: OptimizerOf, module: nn.Module) -> torch.optim.Optimizer:
    made = factory(module)
    if not isinstance(made, torch.optim.Optimizer):
        raise SettingsError(f"optimizer: must return a torch.optim.Optimizer, not a {type(made).__name__}")
    known = {id(parameter) for parameter in module.parameters()}
    if any(id(parameter) not in known for group in made.param_groups for parameter in group["params"]):
        raise SettingsError("optimizer: has parameters of another model; use those of the model that it is called with")
    return made


def _describe(optimizer: torch.optim.Optimizer) -> Table:
    plain = {
        name: float(value) if isinstance(value, Tensor) else value
        for name, value in (optimizer.defaults | {"lr": optimizer.param_groups[0]["lr"]}).items()
        if isinstance(value, bool | int | float | Tensor)
    }
    return {"name": type(optimizer).__name__} | plain


def _about(task: Task) -> Table:
    if isinstance(task, ModelTask):
        return task.about()
    return config.plain(task) if hasattr(task, "__dataclass_fields__") else {"name": type(task).__name__}


class _Factor(ScheduleBase):
    """A function of the frames trained as a schedule."""

    def __init__(self, function: Any) -> None:
        if not callable(function):
            raise SettingsError(f"schedule: must be a table or a function of the frames trained, not {function!r}")
        self._function: Callable[[float], float] = function

    def __call__(self, frames: float) -> float:
        """Return the factor of the learning rate after ``frames`` frames."""
        return float(self._function(frames))
