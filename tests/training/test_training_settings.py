"""Settings of training that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from roundelay.errors import SettingsError
from roundelay.training.training_settings import CheckpointSettings, GuardSettings, KeepSettings


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        ({"every_frames": 0}, "every_frames must be at least 1"),
        ({"every_minutes": -1.0}, "every_minutes must be above 0"),
        ({"keep": 0}, "keep must be at least 1"),
        ({"every_frames": 5, "every_minutes": 1.0}, "both given"),
        ({"retry_minutes": -1.0}, "retry_minutes must be at least 0"),
    ],
)
def test_settings_that_cannot_be(given_settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        CheckpointSettings(**given_settings)


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        ({"max_skips": 0}, "max_skips must be at least 1"),
        ({"lr_factor": 0.0}, "lr_factor must be above 0"),
        ({"lr_factor": 1.5}, "lr_factor must be"),
        ({"max_rollbacks": 0}, "max_rollbacks must be at least 1"),
    ],
)
def test_guards_that_cannot_be(given_settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        GuardSettings(**given_settings)


def test_models_to_keep_that_cannot_be() -> None:
    with pytest.raises(SettingsError, match="num_models must be at least 1"):
        KeepSettings(num_models=0)
    with pytest.raises(SettingsError, match="patience must be at least 1"):
        KeepSettings(patience=0)
