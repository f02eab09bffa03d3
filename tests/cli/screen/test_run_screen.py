"""What ``roundelay watch`` draws, on screens of several sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from roundelay.cli.screen.run_screen import draw, state
from roundelay.cli.screen.time_left import TimeLeft
from roundelay.runs.follower import Follower
from watched_run import line, make_run


def watched(folder: Path, learners: int) -> Follower:
    run = make_run(folder / "run")
    (run / "run.json").write_text(json.dumps({"learners": learners, "on": "processes", "minibatches": 1000}))
    lines = []
    for k in range(4 * learners):
        member = f"learner {k % learners}"
        lines.append(line("compute", member, k / 10, seconds=0.05))
        lines.append(line("wait", member, k / 10, seconds=0.05))
        lines.append(line("step", member, k / 10, minibatch=k, frames=32, loss=9.0 / (k + 1)))
    for k in range(3):
        scores = {"loss": 2.0, "error": 0.4, "distance": 0.1}
        lines.append(line("evaluate", "learner 0", k + 1.0, minibatch=k, epoch=1.0, **scores))
        lines.append(line("lost", f"learner {k}", k + 2.0, reason="it was killed"))
    (run / "record.jsonl").write_text("".join(lines))
    follower = Follower(run)
    follower.read()
    return follower


def shown(follower: Follower, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, highlight=False)
    with console.capture() as capture:
        console.print(draw(follower, width, height))
    return capture.get().splitlines()


@pytest.mark.parametrize("height", [23, 40, 60])
@pytest.mark.parametrize("learners", [2, 16, 30])
def test_it_fits_the_screen_with_every_learner(tmp_path: Path, learners: int, height: int) -> None:
    lines = shown(watched(tmp_path, learners), 80, height)
    assert len(lines) <= height
    assert f"{learners} learners on processes" in " ".join(" ".join(lines[:2]).split())  # the top is there
    assert max(map(len, lines)) <= 80
    numbers = {word for text in lines for word in text.split()}
    if learners < 30 or height > 23:
        assert {str(k) for k in range(learners)} <= numbers
    assert any("time is spent on" in text for text in lines)
    assert any(text.startswith("█ compute") for text in lines)


def test_thirty_learners_without_events_are_all_on_a_small_screen(tmp_path: Path) -> None:
    follower = watched(tmp_path, 30)
    follower.events.clear()
    lines = shown(follower, 80, 23)
    assert len(lines) <= 23
    assert {str(k) for k in range(30)} <= {word for text in lines for word in text.split()}


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    lines = shown(watched(tmp_path, 100), 80, 23)
    assert len(lines) <= 23
    assert any("more" in text for text in lines)


def test_a_run_that_has_not_begun_has_no_loss(tmp_path: Path) -> None:
    said = state(Follower(make_run(tmp_path / "run")))
    assert said == "waiting for the first step  minibatch 0/40"


def test_the_time_left_is_said(tmp_path: Path) -> None:
    left = TimeLeft(1000)
    left.left = 125.0
    assert state(watched(tmp_path, 2), left).endswith("about 2 min left")
