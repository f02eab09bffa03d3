"""One rank's part in a run, step by step: rendezvous, claim, step, undo, synchronize, finish."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lone_member import LoneMember
from roundelay.errors import LearnerLost, NumericalError
from roundelay.learner import Learner
from roundelay.strategies import Synchronous
from roundelay.strategy import Strategy
from roundelay.training.budget import Agenda, Budget, SyncInterval
from roundelay.training.participation import Participation
from roundelay.training.rank_state import RankState


def make(strategy: Strategy | None = None, minibatches: int = 4, **more: Any) -> Participation:
    member = LoneMember(strategy or Synchronous())
    made = Participation(member, Agenda(member, Budget(10, minibatches, 2).intervals()), **more)
    member.alone.run(made.rendezvous())
    return made


def run(made: Participation, work: Any) -> Any:
    return made.member.runtime.run(work)


def numbers(made: Participation, vector: Tensor) -> list[float]:
    """Return the parameters that are in a vector, without its padding."""
    return [number for slot in made.member.learner.slots for number in slot.view(vector).reshape(-1).tolist()]


def step(made: Participation, loss: float = 1.0) -> int | None:
    """Take one step along a gradient of ones; return the minibatch."""
    claim = run(made, made.agenda.claim())
    assert claim is not None
    made.steps.begin(claim, frames=8)
    made.member.learner.grad.fill_(1.0)
    run(made, made.end_step(claim.number, loss))
    return int(claim.number)


def test_a_run_from_its_start_to_its_end() -> None:
    made, seen = make(), list[SyncInterval]()
    before = numbers(made, made.member.learner.weights)

    async def evaluate(interval: SyncInterval) -> bool:
        seen.append(interval)
        return False

    for _ in range(2):
        assert [step(made), step(made)] == [2 * len(seen), 2 * len(seen) + 1]
        assert run(made, made.agenda.claim()) is None, "the interval is over"
        run(made, made.synchronize(evaluate))
    assert made.agenda.done
    assert [interval.end for interval in seen] == [2, 4]
    consensus: Tensor = run(made, made.finish())
    assert numbers(made, consensus) == pytest.approx([number - 4 * 0.5 for number in before])  # four steps of rate 1/2
    assert isinstance(made.member, LoneMember)
    steps = [event for event in made.member.events if event["event"] == "step"]
    assert [(event["minibatch"], event["frames"], event["loss"]) for event in steps] == [(k, 8, 1.0) for k in range(4)]


def test_an_evaluation_may_end_the_run() -> None:
    made = make()
    step(made)
    step(made)

    async def stop(interval: SyncInterval) -> bool:
        return True

    run(made, made.synchronize(stop))
    assert made.agenda.done


class Losing(Strategy):
    """The other learner is lost in the middle of a step, after the weights were changed."""

    async def step(self, learner: Learner) -> None:
        learner.weights.add_(5.0)
        raise LearnerLost("learner 1 is gone")


def test_an_unfinished_step_is_undone_and_its_minibatch_handed_out_again() -> None:
    made = make(Losing())
    made.member.learner.alias_snapshot(one=False)  # as with more than one learner
    before = made.member.learner.weights.clone()
    with pytest.raises(LearnerLost) as lost:
        step(made)
    made.undo(lost.value)
    assert torch.equal(made.member.learner.weights, before)
    assert isinstance(made.member, LoneMember)
    assert made.member.events[-1]["event"] == "lost"
    assert made.member.events[-1]["reason"] == "learner 1 is gone"
    run(made, made.rendezvous())
    claim = run(made, made.agenda.claim())
    assert claim.number == 0


def test_a_skipped_minibatch_is_not_recorded_but_is_done() -> None:
    made = make()
    claim = run(made, made.agenda.claim())
    made.steps.begin(claim, frames=8)
    run(made, made.end_step(claim.number, math.nan, skipped=True))
    assert isinstance(made.member, LoneMember)
    assert [event["event"] for event in made.member.events] == []
    assert step(made) == 1


def test_metrics_of_a_step_are_added_up_and_recorded_once() -> None:
    made = make()
    made.member.learner.log("staleness", 1.0)
    made.member.learner.log("staleness", 2.0)
    step(made)
    step(made)
    assert isinstance(made.member, LoneMember)
    assert [event.get("staleness") for event in made.member.events if event["event"] == "step"] == [3.0, None]


def test_the_last_loss_is_part_of_a_checkpoint() -> None:
    made, other, state = make(), make(), RankState(1, 0, 1)
    step(made, loss=0.75)
    made.steps.capture(state)
    other.steps.restore(state)
    assert other.steps.loss == 0.75


def test_a_consensus_that_is_not_finite_is_no_result() -> None:
    made = make()
    made.member.learner.weights.fill_(math.nan)
    with pytest.raises(NumericalError, match="the consensus has non-finite weights"):
        run(made, made.finish())


def test_the_rate_is_lowered_from_the_start_if_asked() -> None:
    assert make(lr_factor=0.25).member.learner.rollback_lr_factor == 0.25
