"""Runs in a list: their state, their scores, the latest first."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from roundelay.errors import CheckpointError
from roundelay.runs.run_list import list_runs
from watched_run import line, make_run, steps


def age(run: Path, seconds: float) -> None:
    for path in run.iterdir():
        os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_state_and_scores(tmp_path: Path) -> None:
    done, going, old = (make_run(tmp_path / name) for name in ("done", "going", "old"))
    for run in (done, going, old):
        scores = line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4, loss=1.5)
        (run / "record.jsonl").write_text(steps(10) + scores)
    (done / "model.json").write_text("{}")
    (old / "settings.toml").write_text('learners = 3\n[strategy]\nname = "bmuf"\n')
    age(done, 500)
    age(old, 100)
    found = list_runs(tmp_path)
    assert [Path(run.folder).name for run in found] == ["going", "old", "done"]
    assert [run.state for run in found] == ["running", "stopped", "finished"]
    assert (found[1].strategy, found[1].learners) == ("bmuf", 3)
    assert (found[0].done, found[0].total, found[0].scores) == (10, 40, {"loss": 1.5, "error": 0.4})


def test_runs_of_studies_are_found_and_damaged_settings_survived(tmp_path: Path) -> None:
    (tmp_path / "study" / "runs").mkdir(parents=True)
    run = make_run(tmp_path / "study" / "runs" / "cell")
    (run / "settings.toml").write_text("= damaged")
    (found,) = list_runs(tmp_path)
    assert (found.folder, found.learners, found.scores) == (str(run), 1, {})


def test_no_folder(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    with pytest.raises(CheckpointError, match="no such folder"):
        list_runs(tmp_path / "nowhere")
