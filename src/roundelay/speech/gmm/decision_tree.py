"""Tie triphone states to senones with a decision tree per phone and HMM state.

P phones, Q questions, D features.  Moments of a set of frames are one row of 1 + 2D numbers: count, sums, squares.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundelay.errors import SettingsError
from roundelay.speech.gmm.arrays import Array, product, read_tensors, write_tensors

STATES = 3  # of every phone's HMM, left to right
SILENCE = 0  # the phone without context-dependent states, and the context beyond the ends
VARIANCE_FLOOR = 0.01
_LEFT, _RIGHT, _LEAF = 0, 1, -1


def log_likelihood(moments: Array) -> Array:
    """Return the log-likelihood, summed over frames, of sets of frames under the best-fitting Gaussian of each.

    The variance is floored, and the D log 2π terms are left out: they cancel in every difference taken here.
    """
    num_features = (moments.shape[-1] - 1) // 2
    count = np.maximum(moments[..., :1], 1e-10)
    mean = moments[..., 1 : 1 + num_features] / count
    raw = moments[..., 1 + num_features :] / count - mean * mean
    variance = np.maximum(raw, VARIANCE_FLOOR)
    # With a floored variance the exponents do not sum to the frame count, so they are computed.
    total: Array = -0.5 * (count * (np.log(variance) + raw / variance)).sum(-1)
    return total


@dataclass(slots=True)
class TreeStatistics:
    """Moments of the triphone states that occur: sorted ``keys``, and one row of ``moments`` per key."""

    num_phones: int
    keys: Array
    moments: Array

    @classmethod
    def collect(cls, num_phones: int, contexts: Array, frames: Array) -> TreeStatistics:
        """Gather frames (T, D) by their contexts (T, 4): left, centre, right, state."""
        left, centre, right, state = contexts.astype(np.int64).T
        keys = ((centre * STATES + state) * num_phones + left) * num_phones + right
        wide = frames.astype(np.float64)
        rows = np.concatenate([np.ones((len(wide), 1)), wide, wide * wide], axis=1)
        return cls(num_phones, *_sum_by_key(keys, rows))

    def merge(self, other: TreeStatistics) -> TreeStatistics:
        """Add two collections."""
        keys = np.concatenate([self.keys, other.keys])
        return TreeStatistics(self.num_phones, *_sum_by_key(keys, np.concatenate([self.moments, other.moments])))

    def select_state(self, centre: int, state: int) -> tuple[Array, Array, Array]:
        """Select one phone's HMM state: left contexts, right contexts, moments."""
        square = self.num_phones**2
        begin = (centre * STATES + state) * square
        low, high = np.searchsorted(self.keys, [begin, begin + square])
        keys = self.keys[low:high] - begin
        return keys // self.num_phones, keys % self.num_phones, self.moments[low:high]


def _sum_by_key(keys: Array, rows: Array) -> tuple[Array, Array]:
    if not len(keys):
        return keys, rows
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    return keys[starts], np.add.reduceat(rows[order], starts, axis=0)


def find_questions(statistics: TreeStatistics) -> Array:
    """Find sets of similar phones: (Q, P), bool.

    Phones are clustered bottom-up by joining the two clusters whose union loses least likelihood.  Every cluster and
    every phone is a question.  First, middle and last states are clustered separately: a neighbour depends on how a
    phone begins or ends.
    """
    num_phones = statistics.num_phones
    questions = {tuple(row) for row in np.eye(num_phones, dtype=bool)}
    for state in range(STATES):
        rows = [statistics.select_state(phone, state)[2].sum(0) for phone in range(num_phones)]
        seen = [phone for phone in range(num_phones) if phone != SILENCE and rows[phone][0] > 0]
        questions |= {
            tuple(np.isin(np.arange(num_phones), cluster))
            for cluster in _agglomerate([rows[phone] for phone in seen], seen)
        }
    return np.array(sorted(questions, reverse=True))


def _agglomerate(moments: list[Array], names: list[int]) -> list[list[int]]:
    """List the clusters made by joining single phones until two clusters are left."""
    clusters = [[name] for name in names]
    made = []
    while len(clusters) > 2:
        table = np.array(moments)
        alone = log_likelihood(table)
        loss = alone[:, None] + alone[None] - log_likelihood(table[:, None] + table[None])
        np.fill_diagonal(loss, np.inf)
        a, b = sorted(divmod(int(loss.argmin()), len(clusters)))
        clusters[a] = clusters[a] + clusters.pop(b)
        moments[a] = moments[a] + moments.pop(b)
        made.append(clusters[a])
    return made


@dataclass(slots=True)
class TreeSplit:
    """The best question for a leaf: its gain, the side it asks about, and the phones with the answer yes."""

    gain: float
    side: int
    members: Array


def best_split(lefts: Array, rights: Array, moments: Array, questions: Array, min_frames: float) -> TreeSplit | None:
    """Try every question on both sides of the given triphone states; None if no split has enough frames."""
    whole = moments.sum(0)
    best: TreeSplit | None = None
    for side, contexts in ((_LEFT, lefts), (_RIGHT, rights)):
        by_phone = np.zeros((questions.shape[1], moments.shape[1]))
        np.add.at(by_phone, contexts, moments)
        yes = product(questions, by_phone, np.float64)
        no = whole - yes
        gains = log_likelihood(yes) + log_likelihood(no) - log_likelihood(whole)
        gains[np.minimum(yes[:, 0], no[:, 0]) < min_frames] = -np.inf
        index = int(gains.argmax())
        if gains[index] > (best.gain if best else 0.0):
            best = TreeSplit(float(gains[index]), side, questions[index])
    return best


class Tree:
    """Map a phone in its context to the senones of its three HMM states.

    Phones are numbers from 0 in the lexicon's order, silence first; beyond both ends of an utterance there is silence.
    Nodes are rows of three arrays: ``sides`` (left, right or leaf), ``members`` (phones with the answer yes), and
    ``children`` (no, yes; for a leaf: its senone, twice).  ``roots`` (P, 3) are the nodes to start from.
    """

    def __init__(self, roots: Array, sides: Array, members: Array, children: Array) -> None:
        self.roots, self.sides, self.members, self.children = roots, sides, members, children
        self.num_phones = len(roots)
        self.num_senones = int((sides == _LEAF).sum())
        self._known: dict[tuple[int, int, int], tuple[int, int, int]] = {}

    @classmethod
    def monophone(cls, num_phones: int) -> Tree:
        """Make the tree that ignores context: three senones per phone."""
        number = STATES * num_phones
        leaves = np.arange(number, dtype=np.int32)
        return cls(
            leaves.reshape(num_phones, STATES),
            np.full(number, _LEAF, np.int8),
            np.zeros((number, num_phones), bool),
            np.stack([leaves, leaves], axis=1),
        )

    @classmethod
    def grow(cls, statistics: TreeStatistics, *, num_senones: int, min_frames: float = 60.0) -> Tree:
        """Split the leaf with the largest gain of likelihood until there are ``num_senones``.

        A split must leave ``min_frames`` on both sides, so with few data there may be fewer senones.
        """
        num_phones = statistics.num_phones
        if num_senones < STATES * num_phones:
            raise SettingsError(
                f"num_senones: {num_senones} is too few for {num_phones} phones of {STATES} states; "
                f"at least {STATES * num_phones} are needed"
            )
        return _Grower(statistics, find_questions(statistics), min_frames).grow(num_senones)

    def senones(self, left: int, centre: int, right: int) -> tuple[int, int, int]:
        """Look up the senones of the three states of ``centre`` between ``left`` and ``right``."""
        key = (left, centre, right)
        found = self._known.get(key)
        if found is None:
            first, middle, last = (self._descend(int(root), left, right) for root in self.roots[centre])
            found = self._known[key] = (first, middle, last)
        return found

    def _descend(self, node: int, left: int, right: int) -> int:
        while self.sides[node] != _LEAF:
            context = left if self.sides[node] == _LEFT else right
            node = int(self.children[node, int(self.members[node, context])])
        return int(self.children[node, 0])

    def __getstate__(self) -> tuple[Array, Array, Array, Array]:
        return self.roots, self.sides, self.members, self.children

    def __setstate__(self, state: tuple[Array, Array, Array, Array]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # only the arrays are stored; the cache starts empty

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that make the tree, for a file."""
        return {"roots": self.roots, "sides": self.sides, "members": self.members, "children": self.children}

    def save(self, path: Path) -> None:
        """Write the tree as one safetensors file."""
        write_tensors(path, self.arrays(), {"kind": "tree", "version": 1})

    @classmethod
    def load(cls, path: Path) -> Tree:
        """Read what ``save`` wrote."""
        return cls(**read_tensors(path, "tree")[0])


class _Grower:
    """A growing tree: nodes as lists, and a heap of leaves by the gain of splitting them."""

    def __init__(self, statistics: TreeStatistics, questions: Array, min_frames: float) -> None:
        self.statistics, self.questions, self.min_frames = statistics, questions, min_frames
        self.sides: list[int] = []
        self.members: list[Array] = []
        self.children: list[tuple[int, int]] = []
        self.heap: list[tuple[float, int, TreeSplit, tuple[Array, Array, Array]]] = []

    def grow(self, num_senones: int) -> Tree:
        num_phones = self.statistics.num_phones
        roots = np.zeros((num_phones, STATES), np.int32)
        for phone in range(num_phones):
            for state in range(STATES):
                roots[phone, state] = self._add(self.statistics.select_state(phone, state), fixed=phone == SILENCE)
        leaves = roots.size
        while leaves < num_senones and self.heap:
            self._split(*heapq.heappop(self.heap)[1:])
            leaves += 1
        leaf = 0
        for node, side in enumerate(self.sides):
            if side == _LEAF:
                self.children[node] = (leaf, leaf)
                leaf += 1
        members = np.array(self.members).reshape(len(self.sides), num_phones)
        return Tree(roots, np.array(self.sides, np.int8), members, np.array(self.children, np.int32))

    def _add(self, rows: tuple[Array, Array, Array], *, fixed: bool = False) -> int:
        node = len(self.sides)
        self.sides.append(_LEAF)
        self.members.append(np.zeros(self.statistics.num_phones, bool))
        self.children.append((_LEAF, _LEAF))
        split = None if fixed or len(rows[0]) < 2 else best_split(*rows, self.questions, self.min_frames)
        if split:
            heapq.heappush(self.heap, (-split.gain, node, split, rows))
        return node

    def _split(self, node: int, split: TreeSplit, rows: tuple[Array, Array, Array]) -> None:
        yes = split.members[rows[split.side]]
        self.sides[node], self.members[node] = split.side, split.members
        no_child = self._add((rows[0][~yes], rows[1][~yes], rows[2][~yes]))
        self.children[node] = (no_child, self._add((rows[0][yes], rows[1][yes], rows[2][yes])))
