"""Topologies: fallbacks and their notes, and graphs that the user gives."""

from __future__ import annotations

import pytest

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
