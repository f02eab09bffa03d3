"""One of 16 learners is ten times slower: who minds."""

from __future__ import annotations

import pytest

from roundelay.planning.timing_simulation import time_only
from roundelay.runtimes.cluster import Cluster, Compute
from roundelay.strategies import (
    ADPSGD,
    ASGD,
    DPSGD,
    EASGD,
    Averaging,
    DelayByOne,
    Hierarchical,
    PairwiseADPSGD,
    RandomADPSGD,
    Synchronous,
    UpdatesASGD,
)
from roundelay.strategy import Strategy

LEARNERS, STEPS, FACTOR = 16, 100, 10.0


def throughput(strategy: Strategy, slowness: float) -> float:
    """Return minibatches per second of virtual time; the last learner is slow.

    The strategies' own code runs, on stand-ins for tensors: values make no difference to the time.
    """
    compute = Compute(seconds=0.1, slowness=[1.0] * (LEARNERS - 1) + [slowness])
    cluster = Cluster(compute=compute, model_bytes=1e5)
    return LEARNERS * STEPS / time_only(strategy, cluster, learners=LEARNERS, steps=STEPS).seconds


@pytest.mark.parametrize(
    "strategy",
    [ADPSGD(), RandomADPSGD(), PairwiseADPSGD(), ASGD(), UpdatesASGD(), EASGD()],
    ids=lambda s: type(s).__name__,
)
def test_asynchronous_strategies_keep_the_throughput_of_the_others(strategy: Strategy) -> None:
    # 15 of 16 learners at full speed, and a tenth of one: (15 + 0.1)/16 of all, of which the others alone are 15/16
    assert throughput(strategy, FACTOR) >= 0.9 * (LEARNERS - 1) / LEARNERS * throughput(strategy, 1.0)


@pytest.mark.parametrize(
    "strategy", [Synchronous(), DelayByOne(), DPSGD(), Averaging()], ids=lambda s: type(s).__name__
)
def test_barriers_go_at_the_pace_of_the_slowest(strategy: Strategy) -> None:
    assert throughput(strategy, FACTOR) / throughput(strategy, 1.0) == pytest.approx(1 / FACTOR, rel=0.1)


def test_a_slow_learner_slows_its_node_only() -> None:
    strategy = Hierarchical(outer=ADPSGD(), learners_per_node=4)
    # three nodes of four at full speed, and a tenth of one
    assert throughput(strategy, FACTOR) / throughput(strategy, 1.0) == pytest.approx((3 + 1 / FACTOR) / 4, rel=0.1)


def test_a_soft_barrier_gives_up_throughput_for_bounded_staleness() -> None:
    free, bound = throughput(ASGD(), FACTOR), throughput(ASGD(staleness_bound=1), FACTOR)
    assert bound / free == pytest.approx(1 / FACTOR, rel=0.2)
