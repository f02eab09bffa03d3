"""Several best sentences, against all paths."""

from __future__ import annotations

import math

import numpy as np
import pytest

from roundelay.speech.decoding.beam_search import Pruning, best_path, largest_input
from roundelay.speech.decoding.nbest import n_best
from roundelay.speech.language.context_expansion import StateNetwork
from roundelay.speech.language.decoding_graph import build_graph, to_fst
from small_graphs import LEXICON, WIDE, Monophones, Scores, model, random_network, scores_of


def all_sequences(network: StateNetwork, scores: Scores) -> dict[tuple[int, ...], float]:
    """The cost of the best path of each word sequence, by following every path; the graph has no epsilon cycle."""
    found: dict[tuple[int, ...], float] = {}

    def follow(state: int, frame: int, cost: float, words: tuple[int, ...]) -> None:
        if frame == len(scores) and state in network.finals:
            found[words] = min(found.get(words, math.inf), cost + network.finals[state])
        for label, output, weight, target in network.arcs[state]:
            if label and frame == len(scores):
                continue
            said = words + ((output,) if output else ())
            heard = float(scores[frame, label - 1]) if label else 0.0
            follow(target, frame + bool(label), cost + weight - heard, said)

    follow(0, 0, 0.0, ())
    return found


@pytest.mark.parametrize("seed", range(10))
def test_n_best_are_those_of_all_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(rng, outputs=3, states=5)
    scores = scores_of(rng, 5, 3)
    expected = sorted((cost, words) for words, cost in all_sequences(network, scores).items())[:5]
    found = n_best(to_fst(network), scores, Pruning(beam=100.0), 5)
    assert [best.cost for best in found] == pytest.approx([cost for cost, _ in expected], abs=1e-3)
    assert [tuple(best.words) for best in found] == [words for _, words in expected]


def test_the_first_of_n_best_is_the_best() -> None:
    graph = build_graph(LEXICON, model(), Monophones())
    scores = scores_of(np.random.default_rng(4), 60, largest_input(graph))
    several, best = n_best(graph, scores, Pruning(beam=60.0), 4), best_path(graph, scores, WIDE)
    assert several[0].words == best.words
    assert several[0].cost == pytest.approx(best.cost, abs=1e-2)
    assert len({tuple(one.words) for one in several}) == len(several) == 4
