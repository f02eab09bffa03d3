"""Turn a transcript into the HMM of all its pronunciations, with optional silence, in terms of senones.

N nodes (phones in context), K most predecessors of a node, S distinct senones, T frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roundelay.errors import DataError
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.decision_tree import SILENCE, STATES, Tree

SILENCE_PROBABILITY = 0.5
_START = -1
Pronunciations = tuple[tuple[int, ...], ...]  # of one word, as phone numbers


class Pronouncer(Protocol):
    """What is needed of a lexicon: phones with silence first, and each word's pronunciations."""

    @property
    def phones(self) -> list[str]:
        """Name the phones, silence first."""

    @property
    def pronunciations(self) -> dict[str, list[tuple[str, ...]]]:
        """Map each word to its pronunciations."""


class Spelling:
    """Look up pronunciations as phone numbers, and name the utterance if a word has none."""

    def __init__(self, lexicon: Pronouncer) -> None:
        self.phones = list(lexicon.phones)
        number = {phone: index for index, phone in enumerate(self.phones)}
        self.words: dict[str, Pronunciations] = {}
        for word, variants in lexicon.pronunciations.items():
            try:
                numbered = dict.fromkeys(tuple(number[phone] for phone in phones) for phones in variants if phones)
            except KeyError as error:
                raise DataError(f"lexicon: {word!r} has the unknown phone {error.args[0]!r}") from None
            if numbered:
                self.words[word] = tuple(numbered)

    def __call__(self, utterance: str, words: Sequence[str]) -> list[Pronunciations]:
        """Return the pronunciations of each word of an utterance."""
        for word in words:
            if word not in self.words:
                raise DataError(f"{utterance}: {word!r} has no pronunciation; add it to the lexicon")
        return [self.words[word] for word in words]


@dataclass(frozen=True, slots=True)
class UtteranceHmm:
    """The HMM of an utterance: nodes are phones in context, three states each, in topological order."""

    phones: Array  # (N,)
    words: Array  # (N,): position in the transcript, -1 for silence
    senones: Array  # (S,), distinct, sorted
    index: Array  # (3, N): into ``senones``
    predecessors: Array  # (K, N), padded with N
    weights: Array  # (K, N): log-probabilities of those arcs, -inf where padded
    entry: Array  # (N,): log-probability of starting here
    final: Array  # (N,): log-probability of ending here

    def min_frames(self) -> int:
        """Return the number of states of the shortest path: an utterance needs at least as many frames."""
        steps = np.full(len(self.phones) + 1, np.inf)
        for node in range(len(self.phones)):
            before = steps[self.predecessors[:, node]].min()
            steps[node] = 1 + (0 if np.isfinite(self.entry[node]) else before)
        return STATES * int(steps[:-1][np.isfinite(self.final)].min())


class _Lattice:
    """Phones and arcs of all pronunciations, without context."""

    def __init__(self, transcript: Sequence[Pronunciations]) -> None:
        self.phones: list[int] = []
        self.words: list[int] = []
        self.arcs: list[tuple[int, int, float]] = []
        with_silence, without = math.log(SILENCE_PROBABILITY), math.log(1 - SILENCE_PROBABILITY)
        ends = [_START]
        for position, variants in enumerate(transcript):
            ways = [(end, without) for end in ends]
            ways.append((self._add(SILENCE, -1, [(end, with_silence) for end in ends]), 0.0))
            share = -math.log(len(variants))
            ends = [self._pronounce(position, phones, [(n, w + share) for n, w in ways]) for phones in variants]
        last = self._add(SILENCE, -1, [(end, with_silence) for end in ends])
        self.final = {end: without for end in ends if end != _START} | {last: 0.0}

    def _add(self, phone: int, word: int, ways: list[tuple[int, float]]) -> int:
        node = len(self.phones)
        self.phones.append(phone)
        self.words.append(word)
        self.arcs += [(source, node, weight) for source, weight in ways]
        return node

    def _pronounce(self, word: int, phones: tuple[int, ...], ways: list[tuple[int, float]]) -> int:
        node = self._add(phones[0], word, ways)
        for phone in phones[1:]:
            node = self._add(phone, word, [(node, 0.0)])
        return node


_Copy = tuple[tuple[int, int, int], frozenset[int], frozenset[int]]  # senones, left phones, right phones


class GraphBuilder:
    """Build graphs for one tree; the copies of a phone for its possible neighbours are cached."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._copies: dict[tuple[int, frozenset[int], frozenset[int]], list[_Copy]] = {}

    def __call__(self, transcript: Sequence[Pronunciations]) -> UtteranceHmm:
        """Build the graph of a transcript; without words it is silence."""
        lattice = _Lattice(transcript)
        copies = self._contexts(lattice)
        first = np.cumsum([0, *map(len, copies)]).tolist()
        num_nodes = first[-1]
        arcs: list[list[tuple[int, float]]] = [[] for _ in range(num_nodes)]
        entry = np.full(num_nodes, -np.inf, np.float32)
        for source, target, weight in lattice.arcs:
            left = SILENCE if source == _START else lattice.phones[source]
            right = lattice.phones[target]
            for i, (_, lefts, _) in enumerate(copies[target], first[target]):
                if left not in lefts:
                    continue
                if source == _START:
                    entry[i] = weight
                    continue
                arcs[i] += [(j, weight) for j, copy in enumerate(copies[source], first[source]) if right in copy[2]]
        final = np.full(num_nodes, -np.inf, np.float32)
        for node, weight in lattice.final.items():
            for i, (_, _, rights) in enumerate(copies[node], first[node]):
                if SILENCE in rights:
                    final[i] = weight
        counts = [len(of_node) for of_node in copies]
        triples = np.array([copy[0] for of_node in copies for copy in of_node], np.int32)
        senones, index = np.unique(triples.T, return_inverse=True)
        predecessors, weights = _pad(arcs, num_nodes)
        phones, words = np.repeat(lattice.phones, counts), np.repeat(lattice.words, counts)
        index = index.reshape(STATES, num_nodes)
        return UtteranceHmm(phones, words, senones, index, predecessors, weights, entry, final)

    def _contexts(self, lattice: _Lattice) -> list[list[_Copy]]:
        lefts: list[set[int]] = [set() for _ in lattice.phones]
        rights: list[set[int]] = [set() for _ in lattice.phones]
        for source, target, _ in lattice.arcs:
            lefts[target].add(SILENCE if source == _START else lattice.phones[source])
            if source != _START:
                rights[source].add(lattice.phones[target])
        for node in lattice.final:
            rights[node].add(SILENCE)
        return [self._split(*node) for node in zip(lattice.phones, map(frozenset, lefts), map(frozenset, rights))]  # noqa: B905  # equal by construction

    def _split(self, phone: int, lefts: frozenset[int], rights: frozenset[int]) -> list[_Copy]:
        """Copy a phone for its contexts; contexts with the same senones share a copy.

        Left contexts are joined for each right context, then right contexts with the same joined left contexts.  So a
        copy is a full product of left and right contexts, and no path mixes senones of different contexts.
        """
        key = (phone, lefts, rights)
        if key not in self._copies:
            joined: dict[tuple[tuple[int, int, int], frozenset[int]], set[int]] = {}
            for right in sorted(rights):
                by_senones: dict[tuple[int, int, int], set[int]] = {}
                for left in sorted(lefts):
                    by_senones.setdefault(self.tree.senones(left, phone, right), set()).add(left)
                for senones, same in by_senones.items():
                    joined.setdefault((senones, frozenset(same)), set()).add(right)
            self._copies[key] = [(senones, left, frozenset(right)) for (senones, left), right in joined.items()]
        return self._copies[key]


def _pad(arcs: list[list[tuple[int, float]]], num_nodes: int) -> tuple[Array, Array]:
    depth = max(1, *map(len, arcs))
    nodes = np.full((num_nodes, depth), num_nodes, np.int32)
    weights = np.full((num_nodes, depth), -np.inf, np.float32)
    for node, incoming in enumerate(arcs):
        for k, (source, weight) in enumerate(incoming):
            nodes[node, k] = source
            weights[node, k] = weight
    return np.ascontiguousarray(nodes.T), np.ascontiguousarray(weights.T)
