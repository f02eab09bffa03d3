"""The consensus is evaluated by all learners together."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lone_member import LoneMember
from roundelay.errors import NumericalError
from roundelay.strategies import Averaging, Synchronous
from roundelay.task import Scores, Task
from roundelay.training.evaluation import Evaluator
from roundelay.training.rank_state import RankState
from tiny_jobs import recorded


class Counted(Task):
    """Held-out minibatch k has k + 1 frames, and a loss of 2 for each."""

    minibatches_per_epoch, nominal_frames, held_out_minibatches = 10, 8, 3

    def score(self, module: nn.Module, index: int) -> Scores:
        return {"frames": index + 1.0, "loss": 2.0 * (index + 1)}


def evaluator() -> Evaluator:
    member = LoneMember(Synchronous())
    member.start_strategy(warmup=False)
    return Evaluator(member, Counted(), 10)


def test_scores_are_means_per_frame() -> None:
    made = evaluator()
    before = made.member.learner.weights.clone()
    found = made.member.runtime.run(made.evaluate(25))
    assert found.scores == made.scores == {"loss": 2.0, "distance": 0.0}
    assert (found.position, found.epoch, found.clock) == (25, 2.5, "wall")
    assert torch.equal(found.consensus, before)
    assert torch.equal(made.member.learner.weights, before)


def test_the_evaluation_is_recorded() -> None:
    made = evaluator()
    made.member.runtime.run(made.evaluate(20))
    assert isinstance(made.member, LoneMember)
    (event,) = [event for event in made.member.events if "minibatch" in event]
    assert (event["event"], event["minibatch"], event["epoch"], event["loss"]) == ("evaluate", 20, 2.0, 2.0)


def test_weights_that_are_not_finite_are_named() -> None:
    made = evaluator()
    made.member.learner.weights.fill_(math.nan)
    with pytest.raises(NumericalError, match="the consensus after minibatch 20 has non-finite weights"):
        made.member.runtime.run(made.evaluate(20))


def test_the_last_scores_are_part_of_a_checkpoint() -> None:
    made, other, state = evaluator(), evaluator(), RankState(20, 0, 1)
    made.member.runtime.run(made.evaluate(20))
    made.capture(state)
    other.restore(state)
    assert other.scores == made.scores


@pytest.mark.parametrize("learners", [1, 3])
def test_any_number_of_learners_share_the_held_out_minibatches(learners: int) -> None:
    lines = recorded(Averaging(period=5), learners, budget={"evaluate_every": 30})
    evaluations = [line for line in lines if line["event"] == "evaluate" and "minibatch" in line]
    assert [line["minibatch"] for line in evaluations] == [30, 60]
    assert all(0 <= line["error"] <= 1 and line["loss"] > 0 for line in evaluations)
    assert (evaluations[0]["distance"] > 0) == (learners > 1)
