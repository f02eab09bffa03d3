"""A study of a user's own model."""

from __future__ import annotations

from pathlib import Path

import pytest

from own_model import HELD_OUT, LOADER, LOSS, error, make_model
from roundelay.own_models.own_study import ModelComparison, compare
from roundelay.tasks.model_task import ModelTask


@pytest.mark.slow
def test_it_has_a_report_and_continues(tmp_path: Path) -> None:
    task = ModelTask(make_model, LOADER, LOSS, held_out=HELD_OUT, evaluate=error)
    study = {"strategies": ["averaging"], "learners": [2], "target": "error=0.4", "experiment": {}}
    found = compare(study, tmp_path / "study", task=task)
    assert isinstance(found, ModelComparison)
    assert found.report.exists()
    assert len(found.computed) == 2
    assert compare(study, tmp_path / "study", task=task).computed == ()
