"""The factor of the learning rate by the number of learners."""

from __future__ import annotations

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.optim.rate_scaling import RateSettings, multiply_rate


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        (RateSettings(), 1.0),
        (RateSettings("learners"), 4.0),
        (RateSettings("batch"), 4.0),
        (RateSettings("batch", reference=256), 2.0),
    ],
)
def test_factors(settings: RateSettings, factor: float) -> None:
    assert settings.factor(learners=4, frames=128) == factor


def test_the_reference_has_at_least_one_frame() -> None:
    with pytest.raises(SettingsError, match="reference must be at least 1, not 0"):
        RateSettings("batch", reference=0)


def test_the_rate_of_every_group_is_multiplied() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.3)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    assert multiply_rate(optimizer, 2.0) is optimizer
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.6]
