"""Settings of pre-training."""

from __future__ import annotations

from typing import Any

import pytest

from pretraining_experiment import experiment
from roundelay.errors import SettingsError


@pytest.mark.parametrize("wrong", [{"epochs": 0.0}, {"rate": -1.0}, {"layers": 0}, {"l2": -1.0}])
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"pretrain: {next(iter(wrong))} must be"):
        experiment(pretrain=wrong)
