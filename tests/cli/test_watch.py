"""``roundelay watch`` as a user calls it, and what it makes of records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import ROUNDELAY
from roundelay.cli.text_plots import bar, curve, thin
from roundelay.cli.watch import latest
from roundelay.errors import CheckpointError, MissingExtra
from roundelay.runs.follower import Follower


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROUNDELAY, *words], capture_output=True, text=True, timeout=60)


def line(event: str, member: str, time: float, **more: Any) -> str:
    return (
        json.dumps({"event": event, "member": member, "clock": "wall", "time": time, **more}, separators=(",", ":"))
        + "\n"
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "settings.toml").write_text("learners = 2\n")
    (folder / "run.json").write_text(json.dumps({"learners": 2, "on": "processes", "batch": 32, "minibatches": 40}))
    return folder


def steps(count: int) -> str:
    lines = [line("compute", f"learner {k % 2}", k / 10, seconds=0.05) for k in range(count)]
    lines += [
        line("step", f"learner {k % 2}", k / 10, minibatch=k, frames=32, loss=2.0 / (k + 1)) for k in range(count)
    ]
    return "".join(lines)


def test_a_run_that_is_being_written(run: Path) -> None:
    record = run / "record.jsonl"
    half = line("step", "learner 0", 9.0, minibatch=40, frames=32, loss=0.5)
    record.write_text(steps(10) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4, epoch=1.0) + half[:20])
    follower = Follower(run)
    assert follower.read()
    assert (follower.steps, follower.frames, follower.unreadable) == (10, 320.0, 0)
    assert follower.scores[0]["frames"] == 320
    assert follower.learners["learner 1"].spent == {"compute": pytest.approx(0.25)}
    assert not follower.finished
    assert not follower.read()
    with record.open("a") as file:
        file.write(half[20:] + "neither\n")
    assert follower.read()
    assert (follower.steps, follower.unreadable) == (11, 1)
    assert follower.seconds == 9.0


def test_parts_that_become_one_are_not_counted_twice(run: Path) -> None:
    everything = steps(10).splitlines(keepends=True)
    for rank in range(2):
        mine = [each for each in everything if f"learner {rank}" in each]
        (run / f"record-{rank}.jsonl").write_text("".join(mine))
    follower = Follower(run)
    follower.read()
    assert follower.steps == 10
    assert [frames for frames, _ in follower.losses] == [32.0 * (k + 1) for k in range(10)]
    (run / "record.jsonl").write_text("".join(everything) + line("totals", "learner 0", 1.0, compute=5.0, bytes=3))
    follower.read()
    assert follower.steps == 10
    assert follower.learners["learner 0"].spent == {"compute": 5.0}


def test_the_speed_is_by_the_runs_clock(run: Path) -> None:
    (run / "record.jsonl").write_text(steps(30))
    follower = Follower(run)
    follower.read()
    assert follower.speed == pytest.approx(320.0)
    assert follower.loss == pytest.approx(sum(2.0 / (k + 1) for k in range(30)) / 30)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of packages that TensorBoard imports
def test_logs_for_tensorboard(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from roundelay.runs.tensorboard import Logs

    record = run / "record.jsonl"
    record.write_text(steps(100) + line("evaluate", "learner 0", 1.0, minibatch=10, error=0.4))
    follower, logs = Follower(run), Logs(tmp_path / "logs")
    follower.read()
    logs.write(follower)
    with record.open("a") as file:
        file.write(line("evaluate", "learner 0", 2.0, minibatch=20, error=0.3))
    follower.read()
    logs.write(follower)
    logs.close()
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("held out/error")] == [
        (3200, 0.4),
        (3200, 0.3),
    ]
    assert events.Scalars("loss")[0].step >= 2000
    assert events.Scalars("frames of/learner 1")[-1].value == 1600


def test_tensorboard_is_an_extra(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roundelay.runs.tensorboard import Logs

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"roundelay\[tensorboard\]"):
        Logs(tmp_path / "logs")


def test_curves_and_bars() -> None:
    drawn = curve([(0, 4.0), (1, 1.0), (2, 3.0)], 10, 3)
    assert [len(row) for row in drawn] == [13, 13, 13]
    assert drawn[0].startswith("4 │")
    assert drawn[2].startswith("1 │")
    assert curve([], 10, 2) == ["", ""]
    assert "log" in curve([(0, 100.0), (1, 1.0)], 10, 3)[1]
    assert curve([(0, 1.0)], 4, 2)[0].startswith("1 │")
    assert thin([(0, 1.0), (1, float("nan")), (2, 3.0), (3, 5.0)], 2) == [(0.0, 1.0), (2.5, 4.0)]
    assert (bar(0.5, 4), bar(2.0, 3), bar(0.0, 2)) == ("██  ", "███", "  ")
