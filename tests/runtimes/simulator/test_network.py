"""What moving bytes costs."""

from __future__ import annotations

import functools
import math

import pytest

from roundelay.errors import SettingsError
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink, Pauses, Straggler
from roundelay.runtimes.simulator.event_loop import VirtualLoop
from roundelay.runtimes.simulator.network import SimulatedNetwork

TWO_NODES = Cluster(
    nodes=2, learners_per_node=2, intra_node=NetworkLink(1.0, 100.0), inter_node=NetworkLink(10.0, 10.0)
)


def network(cluster: Cluster, learners: int, servers: int = 0) -> SimulatedNetwork:
    return SimulatedNetwork(VirtualLoop(), cluster, cluster.node_of_ranks(learners, servers))


def arrivals(net: SimulatedNetwork, messages: list[tuple[float, int, int]]) -> list[float]:
    """Send all messages now, in this order; return when each arrives."""
    found = [math.nan] * len(messages)

    def note(k: int) -> None:
        found[k] = net.loop.now

    for k, message in enumerate(messages):
        net.transfer(*message, functools.partial(note, k))
    net.loop.run()
    return found


def test_links_inside_and_between_nodes() -> None:
    net = network(TWO_NODES, 4)
    assert arrivals(net, [(200.0, 0, 1), (200.0, 2, 1), (200.0, 3, 3)]) == [3.0, 30.0, 0.0]
    assert net.transfer(200.0, 0, 1, lambda: None) == 3.0
    assert net.transfer(200.0, 3, 3, lambda: None) == 0.0


def test_messages_queue_for_a_servers_link() -> None:
    net = network(TWO_NODES, 4, servers=1)
    found = arrivals(net, [(100.0, 1 + learner, 0) for learner in range(4)])
    assert found == [20.0, 40.0, 30.0, 50.0]  # 10 s each on the server's way in; a node's second comes after its first


def test_learners_of_a_node_share_its_link() -> None:
    found = arrivals(network(TWO_NODES, 4), [(100.0, 0, 2), (100.0, 1, 3), (100.0, 2, 0)])
    assert found == [20.0, 30.0, 20.0]  # the other direction is free


def test_a_ring_of_many_nodes_has_no_convoy() -> None:
    nodes = 50
    net = network(Cluster(nodes=nodes, learners_per_node=1, inter_node=NetworkLink(0.0, 1.0)), nodes)
    both = [(1.0, node, (node + way) % nodes) for node in range(nodes) for way in (-1, 1)]
    assert max(arrivals(net, both)) <= 3.0  # two out and two in for each, however many they are


def test_ring_and_tree() -> None:
    ring = network(Cluster(intra_node=NetworkLink(1.0, 10.0)), 4)
    assert ring.collective("mean", 80.0, (0, 1, 2, 3)) == (2 * 3 * (1.0 + 8.0 / 4), 18.0)
    tree = network(Cluster(intra_node=NetworkLink(1.0, 10.0), all_reduce="tree"), 4)
    assert tree.collective("mean", 80.0, (0, 1, 2, 3)) == (2 * 2 * (1.0 + 8.0), 36.0)
    assert network(Cluster(), 1).collective("mean", 80.0, (0,)) == (0.0, 0.0)


def test_a_collective_waits_for_busy_links() -> None:
    net = network(TWO_NODES, 4)
    net.transfer(100.0, 0, 2, lambda: None)
    begun, moving = net.collective("mean", 40.0, (0, 1, 2, 3))
    assert begun == 10.0 + moving


def test_a_declared_size_scales_every_message() -> None:
    net = network(TWO_NODES, 4)
    net.scale = 10.0
    assert arrivals(net, [(200.0, 0, 1)]) == [21.0]


def test_nothing_costs_anything_while_learners_meet() -> None:
    net = network(TWO_NODES, 4)
    net.paused = True
    assert arrivals(net, [(200.0, 0, 2)]) == [0.0]
    assert net.collective("mean", 200.0, (0, 1, 2)) == (0.0, 0.0)


def durations(compute: Compute, learner: int = 0, count: int = 2000, frames: int = 10, **more: object) -> list[float]:
    cluster = Cluster(compute=compute, **more)  # type: ignore[arg-type]  # stragglers
    draw, now, found = cluster.durations(learner, 0), 0.0, []
    for _ in range(count):
        found.append(draw(now, frames))
        now += found[-1]
    return found


def test_compute_time_models() -> None:
    assert durations(Compute(seconds=1.0, seconds_per_frame=0.1), count=2) == [2.0, 2.0]
    assert durations(Compute(slowness=[1.0, 3.0], seconds=1.0), learner=1, count=1) == [3.0]
    jittered = sorted(math.log(t) for t in durations(Compute(seconds=1.0, jitter=0.2)))
    assert jittered[1000] == pytest.approx(0.0, abs=0.02)
    assert jittered[1683] == pytest.approx(0.2, abs=0.03)  # one standard deviation above the median
    assert durations(Compute(trace=[1.0, 2.0, 3.0]), count=5) == [1.0, 2.0, 3.0, 1.0, 2.0]
    slowed = durations(
        Compute(seconds=1.0), count=4, stragglers=[Straggler(0, 5.0, begin_seconds=1.0, end_seconds=6.0)]
    )
    assert slowed == [1.0, 5.0, 1.0, 1.0]
    paused = durations(Compute(seconds=1.0, pauses=Pauses(every_seconds=10.0, seconds=4.0)))
    assert sum(paused) == pytest.approx(2000 * (1 + 0.1 * 4.0), rel=0.1)


def test_bad_clusters_are_refused() -> None:
    with pytest.raises(SettingsError, match="bandwidth must be above 0, not 0"):
        NetworkLink(bandwidth=0.0)
    with pytest.raises(SettingsError, match="names 2 nodes, cluster.nodes is 3"):
        Cluster(nodes=3, learners_per_node=[1, 2]).node_sizes(3)
    with pytest.raises(SettingsError, match="room for 3 learners, not 4"):
        Cluster(nodes=2, learners_per_node=[1, 2]).node_of_ranks(4, 0)


def test_places() -> None:
    assert TWO_NODES.node_of_ranks(5, 0) == [0, 0, 1, 1, 2]
    assert TWO_NODES.node_of_ranks(4, 2) == [2, 3, 0, 0, 1, 1]
    assert Cluster().node_of_ranks(3, 1) == [0, 0, 0, 0]
    assert Cluster(nodes=2, learners_per_node=[3, 1]).node_of_ranks(4, 0) == [0, 0, 0, 1]
