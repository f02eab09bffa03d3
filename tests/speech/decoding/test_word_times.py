"""Times of words from scores that leave no doubt."""

from __future__ import annotations

import numpy as np

from roundelay.speech.decoding.word_times import WordTimer, spread_evenly
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.language.lexicon import Lexicon

LEXICON = Lexicon({"A": [("a",)], "B": [("b",)]})


def test_frames_are_divided_evenly() -> None:
    assert spread_evenly(2, 10) == [(0, 5), (5, 10)]
    assert spread_evenly(3, 10) == [(0, 3), (3, 7), (7, 10)]
    assert spread_evenly(0, 10) == []


def test_words_are_found_where_their_senones_are() -> None:
    """Silence 3 frames, A 6, B 3: senones 0 to 2 are silence's, 3 to 5 those of a, 6 to 8 those of b."""
    said = [0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8]
    scores = np.full((len(said), 9), -20.0, np.float32)
    scores[np.arange(len(said)), said] = 0.0
    timer = WordTimer(LEXICON, Tree.monophone(3))
    assert timer([["A", "B"], []], [scores, scores]) == [[(3, 9), (9, 12)], []]


def test_too_few_frames_are_divided_evenly() -> None:
    timer = WordTimer(LEXICON, Tree.monophone(3))
    assert timer([["A", "B"]], [np.zeros((4, 9), np.float32)]) == [[(0, 2), (2, 4)]]
