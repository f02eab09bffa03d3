"""A cell is computed, and what came of it is written down, whatever it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roundelay.study.cell_worker import compute, conclude

SETTINGS = """
learners = 2
task = { name = "tiny", frames_per_epoch = 160, hidden = [4] }
batch = { size = 16 }
optimizer = { name = "SGD", lr = %s }
budget = { minibatches = 10 }
"""


def job(folder: Path, rate: str = "0.1") -> dict[str, Any]:
    (folder / "settings.toml").write_text(SETTINGS % rate)
    return {
        "settings": str(folder / "settings.toml"), "on": "simulator", "run": str(folder / "run"),
        "cell": {"name": "synchronous-2-seed-1", "learners": 2}, "digest": "abc",
    }  # fmt: skip


def test_a_cell_is_trained_and_concluded(tmp_path: Path) -> None:
    outcome = compute(job(tmp_path))
    assert (outcome["status"], outcome["error"], outcome["digest"]) == ("done", "", "abc")
    assert outcome["name"] == "synchronous-2-seed-1"
    assert outcome["scores"]["loss"] > 0
    assert outcome["clock"] == "virtual"
    assert json.loads((tmp_path / "run" / "cell.json").read_text()) == outcome
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "trace.json").exists()


def test_a_loss_that_is_not_finite_diverged(tmp_path: Path) -> None:
    outcome = compute(job(tmp_path, rate="1e30"))
    assert outcome["status"] == "diverged"
    assert "\n" not in outcome["error"]
    assert json.loads((tmp_path / "run" / "cell.json").read_text())["status"] == "diverged"


def test_any_other_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = job(tmp_path)
    (tmp_path / "settings.toml").write_text("learnrs = 2\n")
    outcome = compute(wanted)
    assert outcome["status"] == "failed"
    assert "unknown key 'learnrs'" in outcome["error"]
    assert "Traceback" in capsys.readouterr().err, "a study's log has the rest"
    Path(wanted["settings"]).unlink()
    assert compute(wanted)["status"] == "failed"


def test_what_is_not_said_is_nothing(tmp_path: Path) -> None:
    outcome = conclude(job(tmp_path), {"status": "failed", "error": "killed"})
    assert (outcome["scores"], outcome["seconds"], outcome["wer"]) == ({}, None, None)
