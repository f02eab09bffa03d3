"""The plan of the next membership, by what each rank reports; and the merge of weights."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from lone_member import LoneMember
from roundelay.errors import Mismatch
from roundelay.runtime import Membership
from roundelay.strategies import Synchronous
from roundelay.training.budget import SyncInterval
from roundelay.training.recovery import MemberReport, MembershipPlan, make_plan, merge

INTERVALS = [SyncInterval(0, 10), SyncInterval(10, 20)]


def plan_of(*reports: MemberReport, safe: tuple[int, ...] = ()) -> MembershipPlan:
    return msgspec.convert(make_plan([msgspec.to_builtins(report) for report in reports], list(safe)), MembershipPlan)


def holder(**more: Any) -> MemberReport:
    """Report of a rank that has the model and was to train minibatches 0 to 9."""
    given: dict[str, Any] = {"generation": 0, "has_model": True, "remaining": [(0, 10)], "intervals": INTERVALS}
    return MemberReport(**given | more)


def test_at_the_start_the_first_rank_has_the_model() -> None:
    plan = plan_of(MemberReport(), MemberReport(initial_rank=1))
    assert (plan.model_holders, plan.interval_index, plan.remaining) == ([0], 0, [])


def test_what_nobody_has_trained_is_left() -> None:
    plan = plan_of(holder(trained=[0, 2]), holder(initial_rank=1, trained=[1, 9]))
    assert plan.model_holders == [0, 1]
    assert plan.remaining == [(3, 9)]


def test_minibatches_of_a_lost_rank_count_if_they_are_safe() -> None:
    assert plan_of(holder(trained=[0]), safe=(1, 2)).remaining == [(3, 10)]


def test_the_furthest_rank_decides_where_to_continue() -> None:
    behind = holder(trained=list(range(10)))
    ahead = holder(interval_index=1, remaining=[(10, 20)], schedule={"rate": 0.5}, rollback_lr_factor=0.25, attempt=2)
    plan = plan_of(behind, ahead)
    assert (plan.interval_index, plan.remaining) == (1, [(10, 20)])
    assert (plan.schedule, plan.rollback_lr_factor, plan.attempt) == ({"rate": 0.5}, 0.25, 2)


def test_a_rank_that_was_lost_and_comes_back_has_nothing_that_counts() -> None:
    plan = plan_of(holder(trained=[0]), holder(initial_rank=1, trained=[1, 2], newcomer=True))
    assert plan.model_holders == [0]
    assert plan.remaining == [(1, 10)]


def test_models_of_an_older_membership_do_not_count() -> None:
    plan = plan_of(holder(generation=1), holder(generation=2, trained=[5]))
    assert plan.model_holders == [1]


def test_optimizers_and_owned_parts_are_those_of_holders() -> None:
    plan = plan_of(holder(owned_parts=[(0, 4)]), holder(has_stepped=True), MemberReport(has_stepped=True))
    assert plan.stepped == [1]
    assert plan.owned_parts == [(0, 4, 0)]


def test_ranks_that_differ_are_told_in_what() -> None:
    with pytest.raises(Mismatch, match="differ in clip: 1.0 and 2.0"):
        plan_of(MemberReport(fingerprint={"clip": "1.0"}), MemberReport(initial_rank=1, fingerprint={"clip": "2.0"}))


def test_a_merge_alone_keeps_the_weights_and_takes_over_what_was_decided() -> None:
    member = LoneMember(Synchronous())
    before = member.learner.weights.clone()
    plan = plan_of(holder(rollback_lr_factor=0.25))
    for generation, factor in ((0, 1.0), (1, 0.25)):
        member.alone.run(merge(member, Membership(generation, 0, 1, {}), plan))
        assert torch.equal(member.learner.weights, before)
        assert member.learner.rollback_lr_factor == factor
