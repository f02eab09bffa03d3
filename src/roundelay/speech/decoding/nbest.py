"""List the best word sequences of an utterance, each once.

The decoder's lattice has a path for every alignment of every sequence.  Determinising it may take very long, so it is
searched best first: the exact cost from every state to the end is known, and each state is expanded only once for the
same words.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roundelay.speech.decoding.beam_search import Array, BestPath, Pruning, import_decoders

_MOST_STEPS = 200_000
"""After this many steps the search stops with the sequences found so far."""
_SHARES = (0.4, 0.9)
"""Lattice beams to try, as shares of the beam; a narrow lattice is usually enough."""
Arc = tuple[int, float, int]  # word or 0, cost, target


@dataclass
class Lattice:
    """Words and total costs of a lattice; state 0 is the start."""

    arcs: list[list[Arc]]
    finals: dict[int, float] = field(default_factory=dict)

    def costs_to_end(self) -> list[float]:
        """Return the cost of the best path from each state to an end."""
        best = [self.finals.get(state, math.inf) for state in range(len(self.arcs))]
        changed = True
        while changed:  # two rounds if states are in order of time, as in the decoder's lattices
            changed = False
            for state in range(len(self.arcs) - 1, -1, -1):
                through = min((cost + best[target] for _, cost, target in self.arcs[state]), default=math.inf)
                if through < best[state] - 1e-9:
                    best[state], changed = through, True
        return best

    def best(self, count: int) -> list[tuple[float, tuple[int, ...]]]:
        """List cost and words of the best sequences, best first."""
        ahead = self.costs_to_end()
        order = itertools.count()  # entries of equal cost keep their order
        end = len(self.arcs)
        heap: list[tuple[float, int, float, int, tuple[int, ...]]] = [(0.0, next(order), 0.0, 0, ())]
        seen: set[tuple[int, tuple[int, ...]]] = set()
        found: list[tuple[float, tuple[int, ...]]] = []
        while heap and len(found) < count and len(seen) < _MOST_STEPS:
            _, _, cost, state, words = heapq.heappop(heap)
            if (state, words) in seen:
                continue
            seen.add((state, words))
            if state == end:
                found.append((cost, words))
                continue
            if state in self.finals:
                whole = cost + self.finals[state]
                heapq.heappush(heap, (whole, next(order), whole, end, words))
            for word, more, target in self.arcs[state]:
                said = (*words, word) if word else words
                if ahead[target] < math.inf and (target, said) not in seen:
                    after = cost + more
                    heapq.heappush(heap, (after + ahead[target], next(order), after, target, said))
        return found


def n_best(graph: Any, scores: Array, pruning: Pruning, count: int) -> list[BestPath]:
    """List the best word sequences, best first; max_active is not used."""
    if not len(scores):
        return [BestPath([], 0.0, False)]
    found: list[BestPath] = []
    for share in _SHARES:
        found = _n_best(graph, scores, pruning.beam, share * pruning.beam, count)
        if len(found) >= count:
            break
    return found


def _n_best(graph: Any, scores: Array, beam: float, lattice_beam: float, count: int) -> list[BestPath]:
    kaldi_decoder, _ = import_decoders()
    options = kaldi_decoder.LatticeSimpleDecoderConfig(beam=beam, lattice_beam=lattice_beam)
    decoder = kaldi_decoder.LatticeSimpleDecoder(graph, options)
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    complete = math.isfinite(decoder.final_relative_cost())
    found, lattice = decoder.get_raw_lattice(use_final_probs=complete)
    if not found:
        return [BestPath([], math.inf, False)]
    return [BestPath(list(words), cost, complete) for cost, words in read_lattice(lattice).best(count)]


def read_lattice(lattice: Any) -> Lattice:
    """Read a decoder's lattice from its text, since kaldifst has no other access to the arcs."""
    start = lattice.start

    def renumbered(state: int) -> int:
        return 0 if state == start else start if state == 0 else state

    result = Lattice([[] for _ in range(lattice.num_states)])
    for line in lattice.to_str().splitlines():
        state, target, word, cost = _parse(line.split())
        if target is None:
            result.finals[renumbered(state)] = cost
        else:
            result.arcs[renumbered(state)].append((word, cost, renumbered(target)))
    return result


def _parse(fields: Sequence[str]) -> tuple[int, int | None, int, float]:
    """Read ``state target input output [costs]`` or ``state [costs]``; no costs are zero."""
    numbers, costs = (fields[:4], fields[4:]) if len(fields) > 2 else (fields[:1], fields[1:])
    cost = sum(map(float, costs[0].split(","))) if costs else 0.0
    if len(numbers) == 1:
        return int(numbers[0]), None, 0, cost
    return int(numbers[0]), int(numbers[1]), int(numbers[3]), cost
