"""``roundelay watch`` as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from command_line import ROUNDELAY
from roundelay.cli.watch import latest
from roundelay.errors import CheckpointError
from roundelay.runs.follower import Follower
from watched_run import line, make_run, steps


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROUNDELAY, *words], capture_output=True, text=True, timeout=60)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def test_what_is_shown(run: Path) -> None:
    more = line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4) + line(
        "lost", "learner 0", 2.0, reason="it died"
    )
    (run / "record.jsonl").write_text(steps(30) + more)
    shown = call("watch", str(run), "--once").stdout
    assert "minibatch 30/40" in shown
    assert "learner 1" in shown
    assert "lost  learner 0  it died" in shown
    assert "█ compute" in shown
    told = json.loads(call("watch", str(run), "--json").stdout)
    assert (told["minibatches"], told["total"], told["finished"]) == (30, 40, False)
    assert told["scores"] == {"error": 0.4}


def test_without_a_terminal_it_prints_evaluations_and_ends_with_the_run(run: Path) -> None:
    record = run / "record.jsonl"
    record.write_text(steps(10) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4, epoch=1.0))

    command = [*ROUNDELAY, "watch", str(run), "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = watching.stdout.readline()
        with record.open("a") as file:
            file.write(line("evaluate", "learner 0", 2.0, minibatch=20, error=0.3, epoch=2.0))
        (run / "model.json").write_text("{}")
        second, last = watching.stdout.read().splitlines()[:2]
    assert watching.returncode == 0
    assert [words.split("  ")[2].strip() for words in (first, second)] == ["error 40.00 %", "error 30.00 %"]
    assert last.startswith("finished")


def test_an_empty_record_is_waited_for(run: Path) -> None:
    assert "no events yet" in call("watch", str(run), "--once").stdout


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        Follower(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        Follower(tmp_path)
    done = call("watch", str(tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_of_a_study_the_latest_run_is_watched(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no run of this study"):
        latest(tmp_path)
    for age, name in ((100, "older"), (0, "newer"), (200, "oldest")):
        record = tmp_path / "runs" / name / "record.jsonl"
        record.parent.mkdir(parents=True)
        record.touch()
        os.utime(record, (time.time() - age, time.time() - age))
    assert latest(tmp_path).name == "newer"
    assert latest(tmp_path / "runs" / "older").name == "older"
