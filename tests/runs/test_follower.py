"""A run is followed while it is being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.runs.follower import Follower
from watched_run import line, make_run, steps


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


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
