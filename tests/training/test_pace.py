"""A slow learner leaves the last minibatches to the others, and never all learners do."""

from __future__ import annotations

import pytest

from quadratic_task import walk
from roundelay.runtimes.cluster import Cluster, Compute
from roundelay.strategies import ADPSGD, EASGD, RandomADPSGD
from roundelay.strategy import Strategy
from roundelay.training.pace import Pace


def test_it_is_seen_at_claims() -> None:
    pace = Pace()
    assert not pace.is_slow(3)
    pace.claimed(0, 1, 100, now=10.0)
    assert not pace.is_slow(3)  # nothing is known after one claim
    pace.ready(15.0)
    pace.claimed(31, 1, 100, now=15.0)
    assert pace.state == [5.0, 6.0]  # 30 minibatches of 3 others in 5 seconds: half a second for each
    assert pace.is_slow(3)
    assert not pace.is_slow(30)


def test_what_is_left_decides() -> None:
    pace = Pace([5.0, 6.0])
    assert pace.seconds_left(60, others=3) == 0.0  # they need 10.5 seconds, we 5
    assert pace.seconds_left(12, others=3) == 2.0
    assert pace.seconds_left(0, others=3) == 0.25
    assert Pace([0.5, 6.0]).seconds_left(1, others=3) == 0.0  # as fast as they are


def test_others_that_waited_do_not_count_as_slow() -> None:
    pace = Pace()
    pace.claimed(3, 1, 40, now=0.0)
    pace.ready(5.0)
    pace.claimed(43, 1, 40, now=5.0)  # others have had nothing to claim for most of that time
    assert pace.state == [5.0, 0.0]
    pace.met(6.2)
    assert pace.state == pytest.approx([5.0, 6.0])
    assert pace.seconds_left(12, others=3) == pytest.approx(2.0)


def test_time_between_intervals_does_not_count() -> None:
    pace = Pace([5.0, 6.0])
    pace.start_interval()
    pace.claimed(0, 1, 100, now=100.0)
    assert pace.state == [5.0, 6.0]


@pytest.mark.parametrize("strategy", [ADPSGD(), RandomADPSGD(), EASGD()])
@pytest.mark.parametrize("every", [40, 160, 500])
def test_a_slow_learner_does_not_stretch_the_way_to_evaluations(strategy: Strategy, every: int) -> None:
    learners, minibatches = 16, 2000

    def seconds(slowness: float) -> float:
        compute = Compute(seconds=0.1, slowness=[1.0] * (learners - 1) + [slowness])
        path = walk(
            strategy, [0.0] * minibatches, learners, cluster=Cluster(compute=compute), budget={"evaluate_every": every}
        )
        assert sum(map(len, path.weights.values())) == minibatches
        return path.outcome.seconds

    rounds = -(-every // learners) * learners / every  # the last round of all has some idle learners
    assert seconds(10.0) <= 1.12 * rounds * seconds(1.0)


def test_all_minibatches_are_trained_if_everybody_slows_down() -> None:
    compute = Compute(seconds=0.1, jitter=1.5, slowness=[1.0, 4.0, 8.0])
    path = walk(ADPSGD(), [0.0] * 301, 3, cluster=Cluster(compute=compute), budget={"evaluate_every": 7})
    assert sum(map(len, path.weights.values())) == 301
