"""Expansion of phones to states, on networks of a few arcs."""

from __future__ import annotations

from roundelay.speech.language.context_expansion import (
    DISAMBIGUATION,
    PhysicalTriphones,
    StateNetwork,
    add_ctc_blanks,
    add_self_loops,
    expand_contexts,
    expand_states,
)

WORD = 9


class Tree:
    """Three senones per phone; the last one depends on whether silence follows."""

    num_senones = 100

    def senones(self, left: int, centre: int, right: int) -> tuple[int, int, int]:
        del left
        return 10 * centre, 10 * centre + 1, 10 * centre + (2 if right else 3)


def chain(*labels: int) -> StateNetwork:
    network = StateNetwork([[] for _ in range(len(labels) + 1)], {len(labels): 0.0})
    for i, label in enumerate(labels):
        network.arcs[i].append((label, WORD if i == 0 else 0, 0.0, i + 1))
    return network


def inputs(network: StateNetwork) -> list[int]:
    """Follow the only path, loops left out, and list its labels without epsilons."""
    state, found = 0, []
    while ways := [arc for arc in network.arcs[state] if arc[3] != state]:
        ((label, _, _, state),) = ways
        found += [label] if label else []
    assert state in network.finals
    return found


def test_triphones_with_the_same_senones_share_a_label() -> None:
    physical = PhysicalTriphones(Tree())
    assert [physical.label(0, 1, 2), physical.label(3, 1, 4), physical.label(0, 1, 0)] == [1, 1, 2]
    assert physical.triples == [(10, 11, 12), (10, 11, 13)]


def test_phones_become_triphones_and_then_states() -> None:
    physical = PhysicalTriphones(Tree())
    triphones = expand_contexts(chain(2, 3), 4, physical)  # phones 1 and 2
    assert inputs(triphones) == [1, 2]
    states = expand_states(triphones, physical)
    assert inputs(states) == [11, 12, 13, 21, 22, 24]


def test_disambiguation_symbols_pass_and_become_epsilons() -> None:
    physical = PhysicalTriphones(Tree())
    states = expand_states(expand_contexts(chain(2, 7), 4, physical), physical)
    assert inputs(states) == [7 + DISAMBIGUATION, 11, 12, 14]
    looped = add_self_loops(states)
    assert inputs(looped) == [11, 12, 14]
    assert sorted(a[0] for s, arcs in enumerate(looped.arcs) for a in arcs if a[3] == s) == [11, 12, 14]


def test_ctc_requires_a_blank_only_between_equal_phones() -> None:
    network = add_ctc_blanks(chain(2, 2), 4)
    direct = [
        (source, arc) for source, arcs in enumerate(network.arcs) for arc in arcs if arc[0] == 2 and arc[3] != source
    ]
    assert len(direct) == 2  # each of the two only from a state after a blank
    other = add_ctc_blanks(chain(2, 3), 4)
    assert sum(arc[0] == 3 and arc[3] != source for source, arcs in enumerate(other.arcs) for arc in arcs) == 2
    assert other.num_arcs == sum(map(len, other.arcs))
