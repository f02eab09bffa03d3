"""How long steps take in the steady state, and what holds them up."""

from __future__ import annotations

import dataclasses

import pytest

from roundelay.planning.timing import fitted, period_of, time_strategy
from roundelay.runtimes.cluster import Cluster, Fault, NetworkLink, Straggler
from roundelay.strategies import ADPSGD, BMUF, STRATEGIES, Averaging, DelayByOne, Hierarchical, Synchronous
from roundelay.strategy import Strategy, period_setting
from strategy_cases import SETTINGS
from wide_cluster import ALL_REDUCE, WIDE


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
    two = dataclasses.replace(own, serving_bandwidth=1e12)  # one to await, or one to answer
    assert time_strategy(ADPSGD(), two, 2, steps=50).step_seconds == pytest.approx(0.1 + 0.12, rel=0.02)
    assert time_strategy(ADPSGD(), two, 4, steps=50).step_seconds == pytest.approx(0.1 + 2 * 0.12, rel=0.02)


def test_a_plan_is_for_learners_that_live() -> None:
    dying = Cluster(faults=[Fault(learner, 0.15) for learner in range(3)])
    assert time_strategy(Synchronous(), dying, 4) == time_strategy(Synchronous(), Cluster(), 4)
