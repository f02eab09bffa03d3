"""A run in Weights & Biases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from framework_venv import run_there
from roundelay.errors import MissingExtra
from roundelay.runs.wandb_logs import WandbLogs
from watched_run import line, make_run, steps


@pytest.mark.slow
def test_an_offline_run_has_the_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "record.jsonl").write_text(steps(100) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4))
    watch = ["-m", "roundelay", "watch", str(run), "--once", "--wandb", "speech"]
    run_there(*watch, folder=tmp_path, environment={"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")  # records of names and of values as JSON, one after another
    for wanted in (b"held out/error", b"0.4", b"frames of/learner 1", b"1600", b"3200", b"speech"):
        assert wanted in file.read_bytes(), wanted


def test_wandb_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"\[wandb\]"):
        WandbLogs("speech", tmp_path, {})
