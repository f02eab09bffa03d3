"""Numbers that are not finite: the run stops, skips or rolls back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from exploding_task import Exploding
from lone_member import LoneMember
from roundelay.errors import NumericalError
from roundelay.strategies import BMUF, Synchronous
from roundelay.task import Task
from roundelay.training.guard import Guard, check_finite, is_finite
from roundelay.training.training_settings import GuardSettings
from stopped_simulations import events, job_of, run_in


def test_a_loss_that_is_not_finite_stops(tmp_path: Path) -> None:
    job = job_of(Synchronous())
    Exploding(job, {(1, 3)})
    with pytest.raises(NumericalError, match="the loss is nan at minibatch 3 of epoch 1"):
        run_in(tmp_path, job, 2)


@pytest.mark.parametrize("strategy", [Synchronous(), Synchronous(bucket_bytes=128), BMUF(block=3)])
def test_a_minibatch_is_skipped(strategy: Any, tmp_path: Path) -> None:
    job = job_of(strategy, guard=GuardSettings(nonfinite="skip"))
    Exploding(job, {(1, 3), (2, 5)})
    outcome = run_in(tmp_path, job, 2)
    assert bool(torch.isfinite(outcome.consensus).all())
    skipped = [(event["epoch"], event["index"]) for event in events(tmp_path) if event["event"] == "skipped"]
    assert skipped == [(1, 3), (2, 5)]
    trained = {event["minibatch"] for event in events(tmp_path) if event["event"] == "step"}
    assert trained == set(range(60)) - {23, 45}


def test_too_many_skips_are_an_error(tmp_path: Path) -> None:
    job = job_of(Synchronous(), guard=GuardSettings(nonfinite="skip", max_skips=2))
    Exploding(job, {(1, index) for index in range(20)})
    with pytest.raises(NumericalError, match="2 minibatches before it were skipped"):
        run_in(tmp_path, job, 1)


class Described(Task):
    """A task that says what is in its minibatches."""

    def describe(self, epoch: int, index: int) -> str:
        return f"utterance {index}"


def test_one_good_minibatch_ends_a_row_of_skips() -> None:
    member = LoneMember(Synchronous())
    guard = Guard(GuardSettings(nonfinite="skip", max_skips=2))
    for loss, used in ((math.nan, False), (math.inf, False), (1.0, True), (math.nan, False)):
        assert guard.accepts(member, Described(), 0, 7, loss) == used
    assert guard.skipped == 1
    assert [event["event"] for event in member.events] == ["skipped"] * 3
    assert member.events[0]["reason"] == "learner 0: the loss is nan at minibatch 7 of epoch 0 (utterance 7)"


def test_a_gradient_is_looked_at_only_if_it_can_be_skipped() -> None:
    member = LoneMember(Synchronous())
    member.learner.grad.fill_(math.nan)
    assert Guard(GuardSettings(nonfinite="stop")).accepts(member, Described(), 0, 0, 1.0)
    assert not Guard(GuardSettings(nonfinite="skip")).accepts(member, Described(), 0, 0, 1.0)


def test_a_sum_that_overflows_is_no_reason() -> None:
    large = torch.full((4,), 3e38)
    assert not math.isfinite(float(large.sum()))
    assert is_finite(large)
    assert not is_finite(torch.tensor([1.0, math.nan]))
    with pytest.raises(NumericalError, match="learner 0: the consensus has non-finite weights"):
        check_finite(LoneMember(Synchronous()), torch.tensor([math.inf]), "the consensus")
