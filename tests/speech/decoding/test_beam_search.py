"""The search finds what an exhaustive one finds, on graphs small enough for that."""

from __future__ import annotations

import numpy as np
import pytest

from roundelay.errors import DataError, SettingsError
from roundelay.speech.decoding.beam_search import (
    BestPath,
    Pruning,
    Weights,
    acoustic_scores,
    add_word_penalty,
    best_path,
    check_fit,
    largest_input,
    repeat_sentences,
)
from roundelay.speech.decoding.nbest import n_best
from roundelay.speech.language.context_expansion import StateNetwork
from roundelay.speech.language.decoding_graph import build_ctc_graph, build_graph, from_fst, to_fst
from small_graphs import LEXICON, WIDE, Monophones, Scores, model, random_network, scores_of

Found = tuple[float, tuple[int, ...]]


def exhaustive(network: StateNetwork, scores: Scores) -> Found:
    """Viterbi without any pruning, over plain lists, in double precision."""
    best: dict[int, Found] = {0: (0.0, ())}
    best = closure(network, best)
    for row in scores.astype(np.float64):
        after: dict[int, Found] = {}
        for state, (cost, words) in best.items():
            for label, output, weight, target in network.arcs[state]:
                if label:
                    keep(after, target, (cost + weight - row[label - 1], words + ((output,) if output else ())))
        best = closure(network, after)
    ends = [(cost + network.finals[s], words) for s, (cost, words) in best.items() if s in network.finals]
    return min(ends)


def keep(best: dict[int, Found], state: int, found: Found) -> bool:
    if state in best and best[state][0] <= found[0]:
        return False
    best[state] = found
    return True


def closure(network: StateNetwork, best: dict[int, Found]) -> dict[int, Found]:
    """Follow epsilons until nothing gets better."""
    queue = list(best)
    while queue:
        state = queue.pop()
        cost, words = best[state]
        for label, output, weight, target in network.arcs[state]:
            if not label and keep(best, target, (cost + weight, words + ((output,) if output else ()))):
                queue.append(target)
    return best


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_as_by_exhaustive_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(rng, outputs=4)
    scores = scores_of(rng, frames=12, outputs=4)
    cost, words = exhaustive(network, scores)
    found = best_path(to_fst(network), scores, WIDE)
    assert found.complete
    assert found.cost == pytest.approx(cost, abs=1e-3)
    assert found.words == list(words)


@pytest.mark.parametrize("topology", ["hmm", "ctc"])
@pytest.mark.parametrize("penalty", [0.0, 1.5, -1.0])
def test_real_graphs_as_by_exhaustive_search(topology: str, penalty: float) -> None:
    graph = build_graph(LEXICON, model(), Monophones()) if topology == "hmm" else build_ctc_graph(LEXICON, model())
    outputs = largest_input(graph)
    network = from_fst(graph)
    for arcs in network.arcs:
        arcs[:] = [(label, word, cost + penalty * bool(word), target) for label, word, cost, target in arcs]
    changed = add_word_penalty(graph, penalty, len(LEXICON.words))
    rng = np.random.default_rng(1)
    for _ in range(5):
        scores = scores_of(rng, 40, outputs)
        cost, words = exhaustive(network, scores)
        found = best_path(changed, scores, WIDE)
        assert found.cost == pytest.approx(cost, abs=2e-3)
        assert found.words == list(words)
        assert found.words


def test_a_penalty_makes_fewer_words() -> None:
    graph = build_graph(LEXICON, model(), Monophones())
    scores = scores_of(np.random.default_rng(3), 80, largest_input(graph))
    counts = [
        len(best_path(add_word_penalty(graph, penalty, 4), scores, WIDE).words)
        for penalty in (-20.0, 0.0, 20.0, 1000.0)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


@pytest.mark.parametrize("seed", range(5))
def test_several_sentences_as_by_exhaustive_search(seed: int) -> None:
    graph = build_graph(LEXICON, model(), Monophones())
    network = from_fst(graph)
    for state, cost in network.finals.items():
        network.arcs[state].append((0, 0, cost + 0.1, 0))
    scores = scores_of(np.random.default_rng(seed), 60, largest_input(graph))
    cost, words = exhaustive(network, scores)
    found = best_path(repeat_sentences(graph), scores, WIDE)
    assert found.cost == pytest.approx(cost, abs=2e-3)
    assert found.words == list(words)
    assert found.cost <= best_path(graph, scores, WIDE).cost + 1e-3, "one sentence is still possible"
    assert from_fst(graph).num_arcs == network.num_arcs - len(network.finals), "the graph itself is unchanged"


def test_a_narrow_beam_still_gives_a_path() -> None:
    graph = build_graph(LEXICON, model(), Monophones())
    scores = scores_of(np.random.default_rng(5), 4, largest_input(graph))  # too few frames for any word's end
    assert not best_path(graph, scores, Pruning(1.0, 10)).complete
    assert best_path(graph, scores[:0], Pruning()) == BestPath([], 0.0, False)
    assert n_best(graph, scores[:0], Pruning(), 3) == [BestPath([], 0.0, False)]


def test_priors_and_scale_are_applied() -> None:
    posteriors = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    priors = np.log(np.array([0.8, 0.2]))
    found = acoustic_scores(posteriors, priors, Weights(scale=0.5, prior=1.0))
    np.testing.assert_allclose(found, 0.5 * np.log([[0.5 / 0.8, 0.5 / 0.2], [0.9 / 0.8, 0.1 / 0.2]]), rtol=1e-5)
    np.testing.assert_allclose(acoustic_scores(posteriors, priors, Weights(1.0, prior=0.0)), posteriors)


def test_a_graph_that_does_not_fit_is_named() -> None:
    graph = build_graph(LEXICON, model(), Monophones())
    check_fit(graph, Monophones.num_senones, "G")
    with pytest.raises(DataError, match="G: the graph needs 15 outputs, but the model has 14"):
        check_fit(graph, 14, "G")


@pytest.mark.parametrize("name", ["scale", "penalty", "prior"])
def test_weights_are_finite(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be (above 0 and )?finite, not inf"):
        Weights(**{name: float("inf")})


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingsError, match="scale must be above 0"):
        Weights(scale=0)
    with pytest.raises(SettingsError, match="beam must be above 0"):
        Pruning(beam=-1)
