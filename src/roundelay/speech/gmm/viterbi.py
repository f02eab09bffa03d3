"""Find the best path through the HMMs of many utterances at once.

N nodes (phones in context), S distinct senones of an utterance, T frames.  The graphs of a batch are side by side in
one vector of states, so a frame takes few vector operations for any number of utterances.  The scores of all frames are
stored instead of backpointers, and the traceback computes the best predecessors again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.decision_tree import STATES
from roundelay.speech.gmm.hmm import UtteranceHmm

CELLS = 6_000_000  # frames times states searched at once: 24 MB of scores


@dataclass(frozen=True, slots=True)
class Transitions:
    """Log-probabilities of staying in a senone's state and of leaving it, (num_senones,) each."""

    stay: Array
    leave: Array

    @classmethod
    def flat(cls, num_senones: int, stay: float = 0.75) -> Transitions:
        """Make transitions with the same probability of staying for all senones."""
        return cls(np.full(num_senones, np.log(stay), np.float32), np.full(num_senones, np.log1p(-stay), np.float32))

    @classmethod
    def estimate(cls, counts: Array, floor: float = 0.01) -> Transitions:
        """Estimate from counts (num_senones, 2) of staying and leaving, with a prior of four frames per state."""
        smooth = counts + np.array([3.0, 1.0])
        stay = np.clip(smooth[:, 0] / smooth.sum(1), floor, 1 - floor)
        return cls(np.log(stay).astype(np.float32), np.log1p(-stay).astype(np.float32))


@dataclass(frozen=True, slots=True)
class StatePath:
    """Node and state of the best path at each frame, and its log-probability."""

    nodes: Array  # (T,)
    states: Array  # (T,): 0, 1 or 2
    score: float


def search(graphs: Sequence[UtteranceHmm], scores: Sequence[Array], transitions: Transitions) -> list[StatePath | None]:
    """Search utterances; ``scores`` are (S, T), a row for each senone of the graph.  None: there are too few frames."""
    found: list[StatePath | None] = [None] * len(graphs)
    order = sorted(range(len(graphs)), key=lambda u: scores[u].shape[1])
    for batch in _batches(order, graphs, scores):
        paths = _search_batch([graphs[u] for u in batch], [scores[u] for u in batch], transitions)
        for u, path in zip(batch, paths, strict=True):
            found[u] = path
    return found


def _batches(order: Sequence[int], graphs: Sequence[UtteranceHmm], scores: Sequence[Array]) -> Iterator[list[int]]:
    """Divide utterances, sorted by length, into batches of bounded size."""
    batch: list[int] = []
    states = 0
    for u in order:
        states += graphs[u].index.size
        if batch and states * scores[u].shape[1] > CELLS:
            yield batch
            batch, states = [], graphs[u].index.size
        batch.append(u)
    if batch:
        yield batch


class _Batch:
    """Graphs side by side: node n of graph u is node ``first[u] + n``."""

    def __init__(self, graphs: Sequence[UtteranceHmm], transitions: Transitions) -> None:
        sizes = [len(graph.phones) for graph in graphs]
        self.first = np.cumsum([0, *sizes])
        self.num_nodes = int(self.first[-1])
        depth = max(graph.predecessors.shape[0] for graph in graphs)
        # Position num_nodes of the vector of exits is -inf: padded predecessors point there.
        self.predecessors = np.full((depth, self.num_nodes), self.num_nodes)
        self.weights = np.full((depth, self.num_nodes), -np.inf, np.float32)
        for begin, graph in zip(self.first, graphs, strict=False):
            rows, width = graph.predecessors.shape
            real = graph.predecessors < width
            self.predecessors[:rows, begin : begin + width][real] = graph.predecessors[real] + begin
            self.weights[:rows, begin : begin + width] = graph.weights
        senones = np.concatenate([graph.senones[graph.index] for graph in graphs], axis=1)
        self.stay, self.leave = transitions.stay[senones], transitions.leave[senones]
        self.entry = np.concatenate([graph.entry for graph in graphs])
        self.final = np.concatenate([graph.final for graph in graphs])


def _search_batch(
    graphs: Sequence[UtteranceHmm], scores: Sequence[Array], transitions: Transitions
) -> list[StatePath | None]:
    batch = _Batch(graphs, transitions)
    lengths = np.array([score.shape[1] for score in scores])
    best = np.zeros((int(lengths.max()), STATES, batch.num_nodes), np.float32)
    offsets = []
    for u, (graph, score) in enumerate(zip(graphs, scores, strict=True)):
        # The score of each frame's best senone is subtracted, so that float32 is enough for long utterances.
        top = score.max(axis=0)
        offsets.append(float(top.sum(dtype=np.float64)))
        columns = slice(batch.first[u], batch.first[u + 1])
        best[: score.shape[1], :, columns] = (score - top).T[:, graph.index]
    _forward(batch, best)
    return _backward(batch, best, lengths, offsets)


def _forward(batch: _Batch, best: Array) -> None:
    """Turn emission scores (T, 3, N) into the scores of the best paths that end there."""
    exits = np.full(batch.num_nodes + 1, -np.inf, np.float32)
    best[0, 0] += batch.entry
    best[0, 1:] = -np.inf
    for previous, current in pairwise(best):
        moved = previous + batch.leave
        exits[:-1] = moved[-1]
        arriving = previous + batch.stay
        incoming = exits[batch.predecessors]
        incoming += batch.weights
        np.maximum(arriving[0], incoming.max(axis=0), out=arriving[0])
        np.maximum(arriving[1:], moved[:-1], out=arriving[1:])
        current += arriving


def _backward(batch: _Batch, best: Array, lengths: Array, offsets: Sequence[float]) -> list[StatePath | None]:
    """Trace all utterances back together, each from its last frame."""
    count = len(lengths)
    nodes = np.zeros((count, best.shape[0]), np.int32)
    states = np.zeros((count, best.shape[0]), np.int8)
    node, score = _best_ends(batch, best, lengths)
    state = np.full(count, STATES - 1)
    for t in range(best.shape[0] - 1, -1, -1):
        active = np.flatnonzero((lengths > t) & np.isfinite(score))
        if not active.size:
            continue
        nodes[active, t], states[active, t] = node[active], state[active]
        if t:
            node[active], state[active] = _step_back(batch, best[t - 1], node[active], state[active])
    paths: list[StatePath | None] = []
    for u, length in enumerate(lengths):
        if not np.isfinite(score[u]):
            paths.append(None)
            continue
        where = nodes[u, :length] - batch.first[u]
        paths.append(StatePath(where.astype(np.int32), states[u, :length].copy(), float(score[u]) + offsets[u]))
    return paths


def _best_ends(batch: _Batch, best: Array, lengths: Array) -> tuple[Array, Array]:
    node = np.zeros(len(lengths), np.int64)
    score = np.zeros(len(lengths))
    for u, length in enumerate(lengths):
        columns = slice(batch.first[u], batch.first[u + 1])
        ends = best[length - 1, -1, columns] + batch.leave[-1, columns] + batch.final[columns]
        node[u] = batch.first[u] + ends.argmax()
        score[u] = ends.max()
    return node, score


def _step_back(batch: _Batch, before: Array, node: Array, state: Array) -> tuple[Array, Array]:
    """Find the state at the frame before (node, state): the same, the one before it, or a predecessor's last state."""
    exits = np.append(before[-1] + batch.leave[-1], np.float32(-np.inf))
    sources = batch.predecessors[:, node]
    incoming = exits[sources] + batch.weights[:, node]
    k = incoming.argmax(axis=0)
    rows = np.arange(len(node))
    inside = before[state - 1, node] + batch.leave[state - 1, node]
    moved = np.where(state == 0, incoming[k, rows], inside)
    stays = before[state, node] + batch.stay[state, node] >= moved
    new_node = np.where(stays | (state > 0), node, sources[k, rows])
    new_state = np.where(stays, state, np.where(state > 0, state - 1, STATES - 1))
    return new_node, new_state
