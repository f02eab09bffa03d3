"""Runs that are continued, and recorded ones that are run again; all in the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from roundelay.errors import CheckpointError, SettingsError
from roundelay.experiment.continuation import is_finished, replay, resume
from roundelay.experiment.run_observer import RunObserver
from roundelay.experiment.run_training import train

TABLE: dict[str, Any] = {
    "task": {"name": "tiny", "frames_per_epoch": 320, "hidden": [8]}, "batch": {"size": 16}, "learners": 2,
    "budget": {"minibatches": 40, "evaluate_every": 10}, "checkpoint": {"every_frames": 160},
}  # fmt: skip


class Lines(RunObserver):
    """Keeps the lines that it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def noticed(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was stopped behind its last checkpoint, before it saved its model."""
    train(TABLE, tmp_path / "run", on="simulator")
    (tmp_path / "run" / "model.safetensors").rename(tmp_path / "model.safetensors")
    (tmp_path / "run" / "model.json").unlink()
    return tmp_path / "run"


def test_a_stopped_run_ends_as_if_it_had_never_stopped(stopped: Path) -> None:
    assert not is_finished(stopped)
    made = resume(stopped)
    assert is_finished(stopped)
    then, now = load_file(stopped.parent / "model.safetensors"), load_file(stopped / "model.safetensors")
    assert all(torch.equal(then[name], now[name]) for name in then)
    assert made.scores["loss"] > 0
    with pytest.raises(CheckpointError, match="already finished"):
        resume(stopped)


def test_another_number_of_learners_is_written_down_and_told(stopped: Path) -> None:
    told = Lines()
    resume(stopped, learners=3, observer=told)
    said = "\n".join(told.lines)
    assert "3 learners in place of 2" in said
    assert "a global batch has 48 frames in place of 32" in said
    assert "the result is not that of a run that never stopped" in said
    assert json.loads((stopped / "run.json").read_text())["learners"] == 3
    with pytest.raises(CheckpointError, match="already finished"):
        resume(stopped, learners=0)


def test_no_learners_are_too_few(stopped: Path) -> None:
    with pytest.raises(SettingsError, match="--learners must be at least 1, not 0"):
        resume(stopped, learners=0)


def test_other_versions_are_told(stopped: Path) -> None:
    about = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps(about | {"torch": "1.0"}))
    told = Lines()
    resume(stopped, observer=told)
    assert any("began with torch 1.0, continues with" in line for line in told.lines)


def test_what_is_no_run_is_named(tmp_path: Path, stopped: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run: there is no settings.toml and run.json in it"):
        is_finished(tmp_path)
    (stopped / "run.json").write_text('{"on": "the moon"}')
    with pytest.raises(CheckpointError, match="run.json: damaged"):
        resume(stopped)


def test_a_run_without_an_order_cannot_be_replayed(stopped: Path) -> None:
    with pytest.raises(CheckpointError, match=r"order-0.txt is missing; train with --set record.order=true"):
        replay(stopped)
