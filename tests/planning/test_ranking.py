"""Plans: which strategy is fastest, and what that rests on."""

from __future__ import annotations

import pytest

from roundelay.planning.assumptions import assumptions_of
from roundelay.planning.plan_text import answer, say_effect
from roundelay.planning.ranking import PAPERS, make_plan, moved, sensitivity
from roundelay.strategies import STRATEGIES
from wide_cluster import ALL_REDUCE, WIDE


def test_a_ranking_and_what_it_rests_on() -> None:
    strategies = {name: STRATEGIES[name]() for name in ("synchronous", "averaging", "asgd")}
    plan = make_plan(WIDE, strategies, 8)
    assert plan.order == ["averaging", "synchronous", "asgd"]
    assert plan.rows[0].speedup == pytest.approx(8 * 0.1 / (0.1 + ALL_REDUCE / 10))
    assert "averaging is fastest" in answer(plan)[0]
    effects = {effect.assumption: effect for effect in sensitivity(plan, strategies)}
    assert set(effects) == {assumption.name for assumption in assumptions_of(WIDE)}
    assert "jitter of gradients" not in effects
    wider = effects["bandwidth between nodes"]
    assert wider.throughput[2.0]["synchronous"] > 1.2 > wider.throughput[2.0]["averaging"] > 1
    assert say_effect(wider, plan.order) == "nothing"
    assert moved(["a", "b", "c"], ["c", "a", "b"]) == ["c up 2", "a down 1", "b down 1"]


def test_every_strategy_of_the_papers_can_be_planned() -> None:
    plan = make_plan(WIDE, {name: STRATEGIES[name]() for name in PAPERS}, 8)
    assert sorted(plan.order) == sorted(PAPERS)
    assert not plan.skipped
