"""Graphs small enough to be searched exhaustively, and scores to search them by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import tone_corpus
from roundelay.speech.decoding.beam_search import Pruning
from roundelay.speech.language import ngram
from roundelay.speech.language.context_expansion import StateNetwork
from roundelay.speech.language.lexicon import Lexicon

Scores = npt.NDArray[np.float32]
WIDE = Pruning(beam=1000.0, max_active=1_000_000)
LEXICON = Lexicon({word: [tuple(phones)] for word, phones in tone_corpus.LEXICON.items()})


class Monophones:
    """Three states a phone, whatever its neighbours."""

    num_senones = 3 * len(LEXICON.phones)

    def senones(self, left: int, centre: int, right: int) -> tuple[int, int, int]:
        return 3 * centre, 3 * centre + 1, 3 * centre + 2


def model() -> ngram.NgramModel:
    texts = [["SEE", "MA"], ["MA", "AS", "ME"], ["SEE", "ME"], ["ME"], ["AS", "SEE"]]
    return ngram.kneser_ney(ngram.count(texts, 2), LEXICON.words)


def random_network(rng: np.random.Generator, outputs: int, states: int = 7) -> StateNetwork:
    """A random graph with words on some arcs, loops, and epsilons that only lead onwards."""
    network = StateNetwork([[] for _ in range(states)])
    for state in range(states):
        for _ in range(3):
            label = int(rng.integers(0, outputs + 1))
            target = int(rng.integers(states))
            if not label and target <= state:
                label = 1
            network.arcs[state].append((label, int(rng.integers(4)), float(rng.exponential()), target))
    network.arcs[0].append((1, 0, 0.5, states - 1))
    network.arcs[states - 1].append((1, 0, 0.5, states - 1))
    network.finals = {states - 1: 0.25, 1: 0.5}
    return network


def scores_of(rng: np.random.Generator, frames: int, outputs: int) -> Scores:
    logits = 3 * rng.standard_normal((frames, outputs))
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True), np.float32)
