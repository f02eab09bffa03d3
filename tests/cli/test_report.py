from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click
import pytest

from command_line import ROUNDELAY
from roundelay.cli.report import command
from roundelay.errors import SettingsError
from roundelay.runs.record import Record


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROUNDELAY, "report", *words], capture_output=True, text=True, timeout=60)


def make_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "settings.toml").write_text('learners = 1\n[strategy]\nname = "bmuf"\n')
    (folder / "run.json").write_text('{"on": "simulator"}')
    (folder / "model.json").write_text('{"scores": {"loss": 0.5}}')
    record = Record(folder / "record.jsonl", clock="virtual")
    record.write("step", "learner 0", 0.1, minibatch=0, frames=16, loss=1.0)
    record.write("evaluate", "learner 0", 0.1, minibatch=1, epoch=1.0, loss=0.5)
    record.close(0.1)
    return folder


@pytest.mark.slow
def test_a_report_is_written_beside_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = call(str(run), "--target", "loss=0.6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(run / "report.html")
    assert "bmuf with 1 learner" in done.stderr
    assert "reached after 100 ms" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_json_is_alone_on_standard_output(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    done = call(*map(str, runs), "--out", str(tmp_path / "out"), "--json")
    said = json.loads(done.stdout)
    assert said["report"] == str(tmp_path / "out" / "report.html")
    assert said["runs"] == 2
    assert said["answer"]["headline"]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    for words, kind, complaint in (
        ([str(tmp_path / "empty")], SettingsError, "neither a run nor a study"),
        ([str(tmp_path / "nowhere")], click.BadParameter, "does not exist"),
        ([str(run), "--target", "loss"], SettingsError, "use SCORE=VALUE"),
        ([str(run), str(run)], SettingsError, "give --out DIR"),
    ):
        with pytest.raises(kind, match=complaint):
            command.main(words, standalone_mode=False)
