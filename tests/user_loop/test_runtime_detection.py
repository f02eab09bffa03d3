"""Which runtime a loop of the user's own gets, where nothing else has started it."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import SettingsError
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.user_loop.runtime_detection import detect_runtime


def test_without_a_launcher_a_learner_is_alone(tmp_path: Path) -> None:
    runtime, end = detect_runtime(tmp_path / "run", resumed=False)
    assert isinstance(runtime, LocalRuntime)
    runtime.record.write("step", "learner 0", 1.0)
    end()
    assert (tmp_path / "run" / "record.jsonl").read_text().count("step") == 1


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runtime, end = detect_runtime(None, resumed=False)
    runtime.record.write("step", "learner 0", 1.0)
    end()
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_not_overwritten_but_may_be_continued(tmp_path: Path) -> None:
    _, end = detect_runtime(tmp_path, resumed=False)
    end()
    with pytest.raises(SettingsError, match="give record= a new folder"):
        detect_runtime(tmp_path, resumed=False)
    _, end = detect_runtime(tmp_path, resumed=True)
    end()
