"""Graphs of transcripts and the best path through them, against the enumeration of all paths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from roundelay.speech.gmm import viterbi
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.decision_tree import Tree, TreeStatistics
from roundelay.speech.gmm.hmm import GraphBuilder, Pronunciations, Spelling, UtteranceHmm
from roundelay.speech.gmm.hmm_gmm import ModelLexicon
from roundelay.speech.gmm.viterbi import Transitions, search

PHONES = 5


LEXICON = ModelLexicon(
    ["sil", "a", "b", "c", "d"], {"ab": [("a", "b")], "c": [("c",), ("d", "c")], "a": [("a",)], "none": []}
)


def triphone_tree(seed: int = 0) -> Tree:
    rng = np.random.default_rng(seed)
    contexts = np.stack([rng.integers(0, PHONES, 4000) for _ in range(3)] + [rng.integers(0, 3, 4000)], axis=1)
    means = rng.normal(0, 3, (PHONES, PHONES, PHONES, 3, 2))
    frames = means[contexts[:, 0], contexts[:, 1], contexts[:, 2], contexts[:, 3]] + rng.standard_normal((4000, 2))
    return Tree.grow(TreeStatistics.collect(PHONES, contexts, frames), num_senones=60, min_frames=5)


def phone_sequences(transcript: list[Pronunciations]) -> list[tuple[list[int], list[int], float]]:
    """All ways to say a transcript: phones, their words, log-probability."""
    ways = []
    for variants in itertools.product(*transcript):
        for pauses in itertools.product((False, True), repeat=len(variants) + 1):
            phones: list[int] = []
            words: list[int] = []
            for position, pause in enumerate(pauses):
                if pause:
                    phones, words = [*phones, 0], [*words, -1]
                if position < len(variants):
                    phones, words = [*phones, *variants[position]], [*words, *[position] * len(variants[position])]
            weight = len(pauses) * math.log(0.5) - sum(math.log(len(v)) for v in transcript)
            ways.append((phones, words, weight))
    return [way for way in ways if way[0]]


def durations(states: int, frames: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, frames), states - 1)
    return [tuple(np.diff([0, *cut, frames]).tolist()) for cut in cuts]


def enumerate_best(
    transcript: list[Pronunciations], tree: Tree, scores: Array, moves: Transitions
) -> tuple[float, list[int], list[int]]:
    """The best path of all by trying every one: score, senones per frame, phones."""
    best: tuple[float, list[int], list[int]] = (-math.inf, [], [])
    for phones, _, weight in phone_sequences(transcript):
        padded = [0, *phones, 0]
        senones = [s for i in range(len(phones)) for s in tree.senones(*padded[i : i + 3])]
        for lasting in durations(len(senones), scores.shape[0]):
            path = [s for s, n in zip(senones, lasting, strict=True) for _ in range(n)]
            score = weight + float(scores[np.arange(len(path)), path].sum())
            score += sum(
                (n - 1) * float(moves.stay[s]) + float(moves.leave[s]) for s, n in zip(senones, lasting, strict=True)
            )
            if score > best[0]:
                best = (score, path, phones)
    return best


def random_moves(tree: Tree, rng: np.random.Generator) -> Transitions:
    return Transitions.estimate(rng.integers(1, 20, (tree.num_senones, 2)).astype(float))


def graph_scores(graph: UtteranceHmm, scores: Array) -> Array:
    return scores[:, graph.senones].T.copy()


@pytest.mark.parametrize("words", [["c"], ["a"], ["a", "a"]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_best_path_is_the_best_of_all_paths(words: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = triphone_tree(seed)
    transcript = Spelling(LEXICON)("u", words)
    moves = random_moves(tree, rng)
    scores = (3 * rng.standard_normal((11, tree.num_senones))).astype(np.float32)
    graph = GraphBuilder(tree)(transcript)
    path = search([graph], [graph_scores(graph, scores)], moves)[0]
    assert path is not None
    expected, senones, phones = enumerate_best(transcript, tree, scores, moves)
    assert path.score == pytest.approx(expected, abs=1e-3)
    alignment = Alignment.from_path(graph, path)
    assert alignment.senones.tolist() == senones
    assert alignment.phones.tolist() == phones


def test_batches_give_what_single_searches_give(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    tree = triphone_tree()
    build, spelling = GraphBuilder(tree), Spelling(LEXICON)
    transcripts = [["a"], ["c", "ab"], ["ab", "c", "a"], ["c"], []]
    graphs = [build(spelling("u", words)) for words in transcripts]
    scores = [
        rng.standard_normal((len(g.senones), n)).astype(np.float32)
        for g, n in zip(graphs, (7, 40, 31, 9, 12), strict=True)
    ]
    moves = random_moves(tree, rng)
    together = search(graphs, scores, moves)
    monkeypatch.setattr(viterbi, "CELLS", 1)
    for one, other in zip(together, search(graphs, scores, moves), strict=True):
        assert one is not None
        assert other is not None
        assert one.nodes.tolist() == other.nodes.tolist()
        assert one.states.tolist() == other.states.tolist()
        assert one.score == pytest.approx(other.score, rel=1e-5)


def test_too_few_frames_give_no_path_and_say_how_many_are_needed() -> None:
    tree = Tree.monophone(PHONES)
    graph = GraphBuilder(tree)(Spelling(LEXICON)("u", ["ab", "c"]))
    assert graph.min_frames() == 9
    flat = Transitions.flat(tree.num_senones)
    scores = np.zeros((len(graph.senones), 9), np.float32)
    assert search([graph], [scores[:, :8]], flat) == [None]
    assert search([graph], [scores], flat)[0] is not None


def test_words_of_a_path_are_their_positions() -> None:
    rng = np.random.default_rng(0)
    tree = triphone_tree()
    graph = GraphBuilder(tree)(Spelling(LEXICON)("u", ["ab", "c", "a"]))
    path = search([graph], [rng.standard_normal((len(graph.senones), 50)).astype(np.float32)], random_moves(tree, rng))[
        0
    ]
    assert path is not None
    alignment = Alignment.from_path(graph, path)
    spoken = alignment.words[alignment.phones != 0]
    assert sorted(set(spoken.tolist())) == [0, 1, 2]
    assert (np.diff(spoken) >= 0).all()
    assert (alignment.words[alignment.phones == 0] == -1).all()


def test_long_utterances_keep_their_precision() -> None:
    """Ten thousand frames at a score of -80 each, where single precision alone would round to 0.06."""
    tree = Tree.monophone(PHONES)
    graph = GraphBuilder(tree)(Spelling(LEXICON)("u", ["a"]))
    scores = np.full((len(graph.senones), 10_000), -80.0, np.float32)
    moves = Transitions.flat(tree.num_senones, 0.5)
    path = search([graph], [scores], moves)[0]
    assert path is not None
    assert path.score == pytest.approx(-800_000 + 10_000 * math.log(0.5) + 2 * math.log(0.5), abs=1.0)
