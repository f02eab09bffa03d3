"""Expand phones in context to HMM states, and add the self-loops of states.

The functions work on plain lists, since small graphs are made for every utterance; ``decoding_graph`` turns them into
transducers.  An arc is (input, output, cost, next state); state 0 is the start; costs are negative natural logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

Arc = tuple[int, int, float, int]
SILENCE_INDEX = 0
DISAMBIGUATION = 1 << 24
"""Offset of disambiguation symbols, so that they differ from senones and triphones."""

_NO_PHONE = -1
_BLANK = 1


class ContextTree(Protocol):
    """The part of a decision tree that graphs use; phones are indices into the lexicon's list."""

    @property
    def num_senones(self) -> int:
        """Return the number of tied states."""

    def senones(self, left: int, centre: int, right: int) -> tuple[int, int, int]:
        """Return the tied states of a phone between two others, in order of time."""


@dataclass
class StateNetwork:
    """A transducer as lists: the arcs of each state, and the costs of final states."""

    arcs: list[list[Arc]] = field(default_factory=list)
    finals: dict[int, float] = field(default_factory=dict)

    def add_state(self) -> int:
        """Add a state without arcs."""
        self.arcs.append([])
        return len(self.arcs) - 1

    @property
    def num_arcs(self) -> int:
        """Count the arcs."""
        return sum(len(arcs) for arcs in self.arcs)


class _Walk:
    """Number keys in the order of their first use; iteration includes keys that are added during it."""

    def __init__(self, network: StateNetwork, first: tuple[int, ...]) -> None:
        self._network = network
        self._numbers: dict[tuple[int, ...], int] = {}
        self._queue: list[tuple[int, ...]] = []
        self.number(first)

    def number(self, key: tuple[int, ...]) -> int:
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = self._network.add_state()
            self._queue.append(key)
        return known

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._queue)  # the iterator of a list includes items appended during the iteration


class PhysicalTriphones:
    """Numbers of distinct triples of senones: triphones with the same three senones share a number."""

    def __init__(self, tree: ContextTree) -> None:
        self._tree = tree
        self._labels: dict[tuple[int, int, int], int] = {}
        self._cache: dict[tuple[int, int, int], int] = {}
        self.triples: list[tuple[int, int, int]] = []

    def label(self, left: int, centre: int, right: int) -> int:
        """Return the label, from 1, of a phone in its context."""
        known = self._cache.get((left, centre, right))
        if known is None:
            triple = self._tree.senones(left, centre, right)
            known = self._labels.setdefault(triple, len(self._labels) + 1)
            if known > len(self.triples):
                self.triples.append(triple)
            self._cache[left, centre, right] = known
        return known


def expand_contexts(phones: StateNetwork, num_phones: int, physical: PhysicalTriphones) -> StateNetwork:
    """Replace phones (labels 1 to ``num_phones``) by physical triphones; higher labels are raised by DISAMBIGUATION.

    States are (state, left phone, phone).  The label of a phone is known when the next phone is known, so labels are
    one phone late, and the last label is on an arc to the end.  Beyond both ends there is silence.
    """
    result = StateNetwork()
    walk = _Walk(result, (0, SILENCE_INDEX, _NO_PHONE))
    end = result.add_state()
    result.finals[end] = 0.0
    for key in walk:
        state, left, centre = key
        out = result.arcs[walk.number(key)]
        for label, output, cost, target in phones.arcs[state]:
            if label == 0 or label > num_phones:
                out.append((label and label + DISAMBIGUATION, output, cost, walk.number((target, left, centre))))
            elif centre == _NO_PHONE:
                out.append((0, output, cost, walk.number((target, SILENCE_INDEX, label - 1))))
            else:
                seen = physical.label(left, centre, label - 1)
                out.append((seen, output, cost, walk.number((target, centre, label - 1))))
        if state in phones.finals:
            label = 0 if centre == _NO_PHONE else physical.label(left, centre, SILENCE_INDEX)
            out.append((label, 0, phones.finals[state], end))
    return result


def expand_states(triphones: StateNetwork, physical: PhysicalTriphones) -> StateNetwork:
    """Replace each physical triphone by its three senones (label ``senone + 1``), without self-loops."""
    result = StateNetwork([[] for _ in triphones.arcs], dict(triphones.finals))
    for state, arcs in enumerate(triphones.arcs):
        for label, output, cost, target in arcs:
            if label == 0 or label >= DISAMBIGUATION:
                result.arcs[state].append((label, output, cost, target))
                continue
            first, second, third = physical.triples[label - 1]
            one, two = result.add_state(), result.add_state()
            result.arcs[state].append((first + 1, output, cost, one))
            result.arcs[one].append((second + 1, 0, 0.0, two))
            result.arcs[two].append((third + 1, 0, 0.0, target))
    return result


def add_self_loops(states: StateNetwork) -> StateNetwork:
    """Add self-loops, so that each senone lasts one or more frames; replace disambiguation symbols by epsilons.

    A state is split by the senone on its incoming arc, and its loop repeats that senone.  There are no transition
    probabilities: with equal ones all paths of T frames cost the same.
    """
    result = StateNetwork()
    walk = _Walk(result, (0, 0))
    for key in walk:
        state, entered = key
        source = walk.number(key)
        out = result.arcs[source]
        if entered:
            out.append((entered, 0, 0.0, source))
        for label, output, cost, target in states.arcs[state]:
            label = 0 if label >= DISAMBIGUATION else label
            out.append((label, output, cost, walk.number((target, label))))
        if state in states.finals:
            result.finals[source] = states.finals[state]
    return result


def add_ctc_blanks(phones: StateNetwork, num_phones: int) -> StateNetwork:
    """Apply the CTC topology to phones: output 0 is the blank; it has the index of silence, so label 1.

    Any phone may repeat.  Blanks are allowed everywhere, and required between two equal phones.
    """
    result = StateNetwork()
    walk = _Walk(result, (0, _BLANK))
    for key in walk:
        state, last = key
        source = walk.number(key)
        out = result.arcs[source]
        out.append((last, 0, 0.0, source))
        if last != _BLANK:
            out.append((_BLANK, 0, 0.0, walk.number((state, _BLANK))))
        for label, output, cost, target in phones.arcs[state]:
            if label == 0 or label > num_phones:
                out.append((0, output, cost, walk.number((target, last))))
            elif label != last:
                out.append((label, output, cost, walk.number((target, label))))
        if state in phones.finals:
            result.finals[source] = phones.finals[state]
    return result
