"""A study's folder is created once and worked in by one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import CheckpointError, SettingsError
from roundelay.study.definition import Study
from roundelay.study.matrix import expand
from roundelay.study.study_folder import StudyFolder
from study_files import write_study


def test_two_studies_cannot_work_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundelay.study.study_folder.PATIENCE_SECONDS", 0.1)
    folder = StudyFolder(tmp_path)
    with folder.locked(), pytest.raises(CheckpointError, match="in use by another study"), folder.locked():
        pass


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    study = Study.read(write_study(tmp_path / "s.toml"))
    with pytest.raises(SettingsError, match="not a study's folder"):
        StudyFolder(tmp_path).create(study, expand(study))
