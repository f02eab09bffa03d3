"""``roundelay models``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from roundelay.cli import roundelay
from roundelay.errors import SettingsError
from roundelay.models import MODELS


def test_lists_every_model_with_its_sizes() -> None:
    result = CliRunner().invoke(roundelay, ["models", "--json"])
    listed = json.loads(result.stdout)["models"]
    assert [each["name"] for each in listed] == sorted(MODELS)
    dnn = next(each for each in listed if each["name"] == "dnn")
    # 11 frames of 40 features, six layers of 2048, 2000 senones: weights and biases
    wanted = 441 * 2048 + 5 * 2049 * 2048 + 2049 * 2000
    assert dnn["presets"]["switchboard"]["parameters"] == wanted


def test_shows_the_settings_of_one() -> None:
    result = CliRunner().invoke(roundelay, ["models", "lstm"])
    assert result.exit_code == 0
    assert "bottleneck" in result.stdout
    assert "swb2000" in result.stdout


def test_suggests_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="lstm"):
        CliRunner().invoke(roundelay, ["models", "lstn"], catch_exceptions=False)
