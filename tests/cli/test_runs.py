"""``roundelay runs``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import call
from watched_run import line, make_run, steps


def test_runs_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = make_run(tmp_path / "runs")
    (run / "record.jsonl").write_text(steps(10) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4))
    said = call("runs", cwd=tmp_path).stdout
    assert "running 10/40" in " ".join(said.split())
    assert "error 40.00 %" in " ".join(said.split())
    (found,) = json.loads(call("runs", "--json", cwd=tmp_path).stdout)["runs"]
    assert found["state"] == "running"


def test_none_or_no_folder(tmp_path: Path) -> None:
    assert "no runs in it" in call("runs", str(tmp_path)).stderr
    assert "no such folder" in call("runs", cwd=tmp_path).stderr
