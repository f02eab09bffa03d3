"""A described cluster: where learners are, and how long their gradients take."""

from __future__ import annotations

import json
import math
import statistics

import pytest

from roundelay.errors import SettingsError
from roundelay.runtimes.cluster import Cluster, Compute, Fault, NetworkLink, Pauses, Straggler


def test_learners_fill_the_nodes_one_after_another() -> None:
    assert Cluster(nodes=2).node_sizes(5) == [3, 2]
    assert Cluster(nodes=3, learners_per_node=2).node_sizes(5) == [2, 2, 1]
    assert Cluster(nodes=2, learners_per_node=[1, 3]).node_sizes(4) == [1, 3]
    with pytest.raises(SettingsError, match="has room for 4 learners, not 5"):
        Cluster(nodes=2, learners_per_node=[1, 3]).node_sizes(5)


def test_servers_have_nodes_of_their_own_unless_there_is_one() -> None:
    assert Cluster(nodes=2).node_of_ranks(4, 1) == [2, 0, 0, 1, 1]
    assert Cluster().node_of_ranks(3, 2) == [0, 0, 0, 0, 0]


def test_a_gradient_takes_its_frames_and_slowness() -> None:
    cluster = Cluster(compute=Compute(seconds=0.1, seconds_per_frame=0.01, slowness=[1.0, 3.0]))
    assert [cluster.durations(learner, 0)(0.0, 10) for learner in range(3)] == pytest.approx([0.2, 0.6, 0.2])


def test_a_straggler_is_slow_for_a_while() -> None:
    cluster = Cluster(compute=Compute(seconds=0.1), stragglers=[Straggler(1, 5.0, begin_seconds=1.0, end_seconds=2.0)])
    slow, other = cluster.durations(1, 0), cluster.durations(0, 0)
    assert [slow(now, 1) for now in (0.5, 1.0, 1.9, 2.0)] == pytest.approx([0.1, 0.5, 0.5, 0.1])
    assert other(1.5, 1) == pytest.approx(0.1)


def test_jitter_has_median_1_and_repeats_with_the_seed() -> None:
    cluster = Cluster(compute=Compute(seconds=1.0, jitter=0.3))

    def draw(learner: int, seed: int) -> list[float]:
        durations = cluster.durations(learner, seed)
        return [durations(0.0, 1) for _ in range(2000)]

    assert draw(0, 1) == draw(0, 1)
    assert draw(0, 1) != draw(1, 1)
    assert draw(0, 1) != draw(0, 2)
    assert statistics.median(draw(0, 1)) == pytest.approx(1.0, rel=0.05)
    assert statistics.stdev(map(math.log, draw(0, 1))) == pytest.approx(0.3, rel=0.1)


def test_recorded_durations_are_used_in_turn() -> None:
    cluster = Cluster(compute=Compute(trace=[1.0, 2.0, 4.0]))
    durations = cluster.durations(0, 0)
    assert [durations(0.0, 1) for _ in range(4)] == [1.0, 2.0, 4.0, 1.0]


def test_pauses_add_their_seconds() -> None:
    cluster = Cluster(compute=Compute(seconds=1.0, pauses=Pauses(every_seconds=10.0, seconds=5.0)))
    durations, now, paused = cluster.durations(0, 3), 0.0, 0
    for _ in range(2000):
        seconds = durations(now, 1)
        paused += round((seconds - 1.0) / 5.0)
        now += seconds
    assert paused == pytest.approx(2000 / 10, rel=0.25), "one in ten seconds of work"


def test_durations_continue_where_they_were_captured() -> None:
    cluster = Cluster(compute=Compute(jitter=0.3, pauses=Pauses(1.0, 0.5)))
    durations = cluster.durations(0, 0)
    for _ in range(5):
        durations(0.0, 1)
    state = json.loads(json.dumps(durations.capture()))
    expected = [durations(1.0, 1) for _ in range(5)]
    other = cluster.durations(0, 99)
    other.restore(state)
    assert [other(1.0, 1) for _ in range(5)] == expected


def test_what_may_be_lost_and_what_costs_the_learner() -> None:
    assert not Cluster().elastic
    assert Cluster(faults=[Fault(0, 1.0)]).elastic
    assert not Cluster().charges_learner
    assert Cluster(operation_seconds=1e-3).charges_learner
    assert Cluster(copy_bandwidth=1e9).charges_learner


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="bandwidth must be above 0, not 0"):
        NetworkLink(bandwidth=0)
    with pytest.raises(SettingsError, match="nodes must be at least 1, not 0"):
        Cluster(nodes=0)
