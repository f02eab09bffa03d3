"""What a run would be, measured without running it."""

from __future__ import annotations

import pytest

from roundelay.errors import SettingsError
from roundelay.experiment.dry_run import dry_run
from roundelay.experiment.run_training import Changes
from roundelay.included_files import find_file


def test_steps_memory_and_time() -> None:
    found = dry_run(find_file("experiment", "tiny"), Changes(learners=4, settings={"budget.minibatches": 402}))
    assert (found.minibatches, found.steps) == (402, 101)
    assert found.settings["learners"] == 4
    assert found.parameters is not None
    assert found.memory_bytes is not None
    assert found.memory_bytes >= 12 * found.parameters  # weights, gradient, snapshot
    assert found.gradient_seconds is not None
    assert found.seconds is not None
    assert 0 < found.gradient_seconds < found.seconds
    assert not found.unknown


def test_without_data_the_settings_are_still_resolved() -> None:
    found = dry_run(find_file("experiment", "an4-dnn"), Changes())
    assert found.settings["task"]["name"] == "acoustic"
    assert found.minibatches is None
    assert "--data" in found.unknown


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="use at most 3 learners"):
        dry_run(find_file("experiment", "tiny"), Changes(learners=4, settings={"budget.minibatches": 3}))
