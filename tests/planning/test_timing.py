"""How long steps take in the steady state, and what holds them up."""

from __future__ import annotations

import dataclasses

import pytest

from roundelay.planning.assumptions import assumptions_of, say_bytes, say_seconds
from roundelay.planning.plan_text import answer, say_effect
from roundelay.planning.ranking import PAPERS, make_plan, moved, sensitivity
from roundelay.planning.timing import fitted, period_of, time_strategy
from roundelay.runtimes.cluster import Cluster, Compute, Fault, NetworkLink, Straggler
from roundelay.strategies import ADPSGD, BMUF, STRATEGIES, Averaging, DelayByOne, Hierarchical, Synchronous
from roundelay.strategy import Strategy, period_setting
from strategy_cases import SETTINGS

WIDE = Cluster(
    nodes=8,
    learners_per_node=1,
    model_bytes=8e7,
    inter_node=NetworkLink(1e-3, 1e9),
    compute=Compute(seconds=0.1),
    frames=100,
)
ALL_REDUCE = 2 * 7 * (1e-3 + 8e7 / 8 / 1e9)  # of WIDE


def test_starting_up_is_left_out() -> None:
    timing = time_strategy(Synchronous(), WIDE, 8)
    assert timing.step_seconds == pytest.approx(0.1 + ALL_REDUCE)
    assert timing.frames_per_second == pytest.approx(8 * 100 / (0.1 + ALL_REDUCE))
    assert timing.shares["compute"] == pytest.approx(0.1 / (0.1 + ALL_REDUCE))
    assert timing.idle == pytest.approx(ALL_REDUCE / (0.1 + ALL_REDUCE))
    assert timing.bytes_per_step == pytest.approx(2 * 7 / 8 * 8e7)
    assert timing.epoch_seconds(1000.0, fixed=5.0) == pytest.approx(5.0 + 1000.0 / timing.frames_per_second)
    assert time_strategy(DelayByOne(), WIDE, 8).step_seconds == pytest.approx(max(0.1, ALL_REDUCE))


def test_windows_are_whole_periods() -> None:
    assert [period_of(s, 100) for s in (Synchronous(), Averaging(), BMUF(), BMUF(block_frames=450))] == [1, 10, 50, 5]
    assert period_of(Hierarchical(outer=Averaging(period=3)), 100) == 3
    assert time_strategy(Averaging(period=7), WIDE, 8).step_seconds == pytest.approx(0.1 + ALL_REDUCE / 7)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_period_is_found(name: str) -> None:
    kind, given = STRATEGIES[name], SETTINGS.get(name, {})
    assert period_of(kind(**given), 100) == given.get("block", given.get("period", 1))
    if kind.join_interval is not Strategy.join_interval:  # learners hold the same every so many steps only
        assert period_setting(kind) is not None


def test_a_hierarchy_goes_by_the_nodes() -> None:
    strategy = fitted(Hierarchical(), Cluster(nodes=2, learners_per_node=4), 10)
    assert isinstance(strategy, Hierarchical)
    assert strategy.learners_per_node == [4, 4, 2]


def bottleneck(strategy: str, cluster: Cluster, learners: int = 8) -> str:
    return time_strategy(STRATEGIES[strategy](), cluster, learners).bottleneck


def test_what_holds_it_up_has_a_name() -> None:
    assert bottleneck("synchronous", Cluster(model_bytes=1e3)) == "computing"
    assert bottleneck("synchronous", Cluster(model_bytes=1e3, stragglers=[Straggler(3, 5.0)])) == "the slowest learner"
    far = Cluster(nodes=64, learners_per_node=1, model_bytes=1e4, inter_node=NetworkLink(0.01, 1e9))
    assert bottleneck("synchronous", far, 64) == "latency of the all-reduce"
    narrow = Cluster(nodes=8, learners_per_node=1, model_bytes=1e8, inter_node=NetworkLink(0.0, 1e8))
    assert bottleneck("synchronous", narrow) == bottleneck("adpsgd", narrow) == "the links between nodes"
    assert bottleneck("asgd", narrow) == "the server's link"
    assert bottleneck("adpsgd", Cluster(model_bytes=1e9, intra_node=NetworkLink(0.0, 1e8))) == "the links inside a node"
    busy = Cluster(
        nodes=8, learners_per_node=1, model_bytes=1e8, inter_node=NetworkLink(0.0, 1e12), serving_bandwidth=1e8
    )
    assert bottleneck("asgd", busy) == "the server's own work"


def test_a_verb_may_cost_the_learner_itself() -> None:
    own = Cluster(model_bytes=1e8, intra_node=NetworkLink(0.0, 1e15), operation_seconds=0.02, copy_bandwidth=1e9)
    for strategy in (Synchronous(), DelayByOne()):  # which no gradient hides
        assert time_strategy(strategy, own, 4).step_seconds == pytest.approx(0.1 + 0.02 + 0.1, rel=1e-3)
    assert time_strategy(Synchronous(), own, 1).step_seconds == pytest.approx(0.1)
    two = dataclasses.replace(own, serving_bandwidth=1e12)  # one request to await, one to answer
    assert time_strategy(ADPSGD(), two, 2, steps=50).step_seconds == pytest.approx(0.1 + 2 * 0.12, rel=0.02)


def test_a_plan_is_for_learners_that_live() -> None:
    dying = Cluster(faults=[Fault(learner, 0.15) for learner in range(3)])
    assert time_strategy(Synchronous(), dying, 4) == time_strategy(Synchronous(), Cluster(), 4)


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


def test_units() -> None:
    assert [say_seconds(s) for s in (1e-7, 2e-5, 3e-3, 4.0, 500.0, 1e4)] == [
        "0.1 us",
        "20 us",
        "3 ms",
        "4 s",
        "8.33 min",
        "2.78 h",
    ]
    assert [say_bytes(b) for b in (1.0, 2e3, 3e6, 4e9, 5e12)] == ["1 B", "2 kB", "3 MB", "4 GB", "5 TB"]
