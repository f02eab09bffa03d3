"""Cells of a study are read from their folder, in any state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roundelay.runs.history import read_details
from roundelay.runs.target import Target
from roundelay.study.cell_reader import read_cell
from roundelay.study.schema import CellResult
from study_files import fake_cell, plan_cell

PLANNED = plan_cell("bmuf", 4, 1)
RUN = Path("runs") / PLANNED["name"]


def read(folder: Path, **outcome: Any) -> CellResult:
    """Read the cell with a changed outcome."""
    path = folder / RUN / "cell.json"
    if outcome:
        path.write_text(json.dumps(json.loads(path.read_text()) | outcome))
    return read_cell(folder, PLANNED, Target(score="error", value=0.2), read_details(folder / RUN))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fake_cell(tmp_path, PLANNED, [0.5, 0.3, 0.2, 0.1])
    return tmp_path


def test_a_cell_that_is_done(folder: Path) -> None:
    cell = read(folder)
    assert (cell["status"], cell["strategy"], cell["learners"], cell["seed"]) == ("done", "bmuf", 4, 1)
    assert (cell["seconds"], cell["frames"], cell["frames_per_second"]) == (4.0, 400.0, 100.0)
    assert (cell["reached_seconds"], cell["reached_frames"]) == (3.0, 300.0)
    assert cell["scores"] == {"error": 0.1}
    assert [point["seconds"] for point in cell["curve"]] == [1.0, 2.0, 3.0, 4.0]


def test_a_run_that_fails_has_reached_nothing(folder: Path) -> None:
    cell = read(folder, status="diverged", error="the loss is nan")
    assert (cell["status"], cell["error"]) == ("diverged", "the loss is nan")
    assert (cell["seconds"], cell["frames"], cell["reached_seconds"], cell["scores"]) == (None, None, None, {})
    assert len(cell["curve"]) == 4, "what was evaluated is still shown"


def test_a_cell_without_an_outcome_was_interrupted(folder: Path) -> None:
    (folder / RUN / "cell.json").write_text('{"status": "do')
    assert read(folder)["status"] == "interrupted"
    (folder / RUN / "cell.json").unlink()
    assert read(folder)["error"] == "stopped during training"


def test_unknown_states_and_numbers_that_are_none_do_no_harm(folder: Path) -> None:
    assert read(folder, status="splendid")["status"] == "failed"
    cell = read(folder, status="done", scores={"error": "low", "loss": None, "frames": 3}, seconds="long", wer=7)
    assert (cell["scores"], cell["seconds"], cell["frames_per_second"], cell["wer"]) == (
        {"frames": 3},
        None,
        None,
        None,
    )


def test_the_rate_is_the_one_that_was_run(folder: Path) -> None:
    assert read(folder, rate=0.4)["rate"] == 0.4
