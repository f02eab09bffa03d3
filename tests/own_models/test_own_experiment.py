"""Optimizers and schedules that are objects."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from own_model import LOADER, LOSS, make_model
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.own_models.own_experiment import OwnExperiment, own_parts
from roundelay.tasks.model_task import ModelTask

TASK = ModelTask(make_model, LOADER, LOSS)


@pytest.mark.parametrize(
    "optimizer",
    [functools.partial(torch.optim.SGD, lr=0.2), lambda model: torch.optim.SGD(model.parameters(), lr=0.2)],
)
def test_settings_describe_and_change_the_rate(optimizer: Any) -> None:
    parts, table = own_parts(TASK, optimizer, None)
    assert (table["optimizer"]["name"], table["optimizer"]["lr"]) == ("SGD", 0.2)
    made = OwnExperiment.around(Experiment(table["task"], optimizer={"lr": 0.4}), parts)
    assert made.make_optimizer(make_model()).param_groups[0]["lr"] == pytest.approx(0.4)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(SettingsError, match="must return a torch.optim.Optimizer"):
        own_parts(TASK, lambda model: 3, None)
