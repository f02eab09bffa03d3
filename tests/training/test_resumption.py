"""A checkpoint is restored by as many ranks as wrote it, or by another number; what does not fit is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from roundelay.errors import CheckpointError
from roundelay.strategies import BMUF, Averaging, Synchronous
from stopped_simulations import Stopped, events, job_of, run_in


def stopped(folder: Path, learners: int = 3, **settings: Any) -> Path:
    """Run until it is stopped behind its checkpoint after minibatch 42."""
    with contextlib.suppress(Stopped):
        run_in(folder, job_of(BMUF(block=3), **settings), learners, stop=45)
    return folder


def resumed(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "record.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "resumed"]


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_any_number_of_learners_trains_what_is_left(learners: int, tmp_path: Path) -> None:
    outcome = run_in(stopped(tmp_path), job_of(BMUF(block=3)), learners)
    assert bool(torch.isfinite(outcome.consensus).all())
    (event,) = resumed(tmp_path)
    assert (event["size"], event["source"]) == (learners, 3)
    assert event["minibatch"] <= 45
    assert {line["minibatch"] for line in events(tmp_path) if line["event"] == "step"} == set(range(60))


def test_a_lower_rate_is_on_top_of_the_checkpoints(tmp_path: Path) -> None:
    job = job_of(BMUF(block=3))
    job.lr_factor = 0.5
    outcome = run_in(stopped(tmp_path), job, 3)
    assert {training.learner.rollback_lr_factor for training in outcome.trainings} == {0.5}
    assert resumed(tmp_path)[0]["rate"] == 0.5


def test_another_strategy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="made by BMUF, not Averaging; give another folder"):
        run_in(stopped(tmp_path), job_of(Averaging(period=3)), 3)


def test_another_model_is_refused(tmp_path: Path) -> None:
    job = job_of(BMUF(block=3))
    job.task.hidden = [9]  # type: ignore[attr-defined]  # of the tiny task
    with pytest.raises(CheckpointError, match="of another model: .*; give another folder"):
        run_in(stopped(tmp_path), job, 3)


def test_a_run_that_is_done_stays_done(tmp_path: Path) -> None:
    first = run_in(tmp_path, job_of(Synchronous()), 2)
    again = run_in(tmp_path, job_of(Synchronous()), 2)
    assert torch.equal(first.consensus, again.consensus)
