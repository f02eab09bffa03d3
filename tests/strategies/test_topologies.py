"""Topologies: fallbacks and their notes, and graphs that the user gives."""

from __future__ import annotations

import pytest

from roundelay.errors import SettingsError
from roundelay.strategies.topologies import (
    TOPOLOGIES,
    Bipartite,
    Edge,
    ExponentialGraph,
    FixedGraph,
    Ring,
    find_topology,
)


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_there_is_a_note_if_and_only_if_the_fallback_is_used(name: str) -> None:
    topology = find_topology(name)
    for size in range(1, 18):
        chosen = topology.or_fallback(size)
        assert chosen.fits(size)
        assert (chosen is topology) == (topology.fallback_note(size) == "")


def test_notes_say_what_is_used_instead() -> None:
    butterfly, star = find_topology("butterfly"), FixedGraph(((0, 1), (0, 2)))
    assert butterfly.fallback_note(6) == "butterfly does not fit 6 learners: exponential instead"
    assert star.fallback_note(2) == "graph does not fit 2 learners: ring instead"
    assert Bipartite().fallback_note(3).startswith("3 learners do not pair up")
    assert (butterfly.or_fallback(6), star.or_fallback(2)) == (ExponentialGraph(), Ring())


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_links_repeat_after_a_cycle(name: str) -> None:
    topology = find_topology(name)
    for size in (2, 4, 8):
        cycle = topology.cycle(size)
        for rank in range(size if cycle else 0):
            assert topology.links(rank, size, 1) == topology.links(rank, size, 1 + cycle)


def test_the_edges_of_a_graph_are_links_in_both_directions() -> None:
    path = FixedGraph(((1, 0), (1, 2), (2, 1), (2, 2)))
    assert path.links(1, 3) == [Edge(0, 0), Edge(2, 2)]
    assert path.neighbours(2, 3) == [1]
    assert path.fits(3)
    assert not path.fits(4)


def test_a_random_ring_is_drawn_alike_by_everyone_and_anew_each_time() -> None:
    one, other = find_topology("random-ring", seed=5), find_topology("random-ring", seed=5)
    drawn = [one.neighbours(3, 16, k) for k in range(20)]
    assert drawn == [other.neighbours(3, 16, k) for k in range(20)]
    assert len({tuple(pair) for pair in drawn}) > 10
    assert drawn != [find_topology("random-ring", seed=6).neighbours(3, 16, k) for k in range(20)]


def test_partners_are_the_papers() -> None:
    assert [find_topology("butterfly").neighbours(5, 8, k) for k in range(4)] == [[4], [7], [1], [4]]
    assert [find_topology("hopping-ring").neighbours(0, 4, k) for k in range(4)] == [[3], [2], [1], [3]]
    assert [find_topology("exponential").links(1, 8, k)[0].to for k in range(4)] == [2, 3, 5, 2]
    assert [find_topology("bipartite").neighbours(0, 16, k)[0] for k in range(5)] == [1, 3, 5, 9, 1]
    assert find_topology("ring").neighbours(0, 2) == [1]
    assert find_topology("static-exponential").neighbours(0, 8) == [7, 6, 4]


def test_bipartite_pairs_join_an_active_with_a_passive_learner() -> None:
    for size in (2, 6, 7, 16, 33):
        topology = Bipartite().or_fallback(size)
        for k in range(6):
            for rank in range(size):
                for peer in topology.neighbours(rank, size, k):
                    assert (rank + peer) % 2 == 1
    idle = [rank for k in range(8) for rank in range(7) if not Bipartite(uneven=True).links(rank, 7, k)]
    assert len(idle) == 8
    assert len(set(idle)) > 1
    assert all(rank % 2 == 0 for rank in idle)


@pytest.mark.parametrize("name", ["ring", "random-ring", "complete"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_each_link_has_one_end_that_asks(name: str, size: int) -> None:
    topology = find_topology(name)
    for iteration in range(4):
        asked = [{rank, peer} for rank in range(size) for peer in topology.asks(rank, size, iteration)]
        links = {frozenset((rank, peer)) for rank in range(size) for peer in topology.neighbours(rank, size, iteration)}
        assert sorted(map(sorted, asked)) == sorted(map(sorted, links))


def test_a_number_of_learners_that_does_not_fit_is_named() -> None:
    with pytest.raises(SettingsError, match="'butterfly' needs a power of two learners, not 6"):
        find_topology("butterfly").check(6)
    with pytest.raises(SettingsError, match="'bipartite' needs an even number of learners, not 7"):
        find_topology("bipartite").check(7)
    with pytest.raises(SettingsError, match="do not connect 4 learners"):
        FixedGraph(((0, 1), (2, 3))).check(4)
    with pytest.raises(SettingsError, match="did you mean 'random-ring'"):
        find_topology("randomring")


def test_after_a_loss_there_is_a_form_that_fits() -> None:
    butterfly, bipartite = find_topology("butterfly"), find_topology("bipartite")
    assert butterfly.or_fallback(8) is butterfly
    assert butterfly.or_fallback(7) == ExponentialGraph()
    assert bipartite.or_fallback(7) == Bipartite(uneven=True)
    assert FixedGraph(((0, 1), (1, 2))).or_fallback(2) == Ring()
