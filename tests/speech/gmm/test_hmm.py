"""HMMs of transcripts: phones, pronunciations and transitions."""

from __future__ import annotations

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.gmm.hmm import GraphBuilder, Spelling
from roundelay.speech.gmm.hmm_gmm import ModelLexicon
from roundelay.speech.gmm.viterbi import Transitions

PHONES = 5
LEXICON = ModelLexicon(
    ["sil", "a", "b", "c", "d"], {"ab": [("a", "b")], "c": [("c",), ("d", "c")], "a": [("a",)], "none": []}
)


def test_monophone_graph_has_one_copy_of_each_phone() -> None:
    graph = GraphBuilder(Tree.monophone(PHONES))(Spelling(LEXICON)("u", ["ab", "c", "a"]))
    assert graph.phones.tolist() == [0, 1, 2, 0, 3, 4, 3, 0, 1, 0]


def test_word_without_pronunciation_names_utterance_and_word() -> None:
    spelling = Spelling(LEXICON)
    for word in ("zebra", "none"):
        with pytest.raises(DataError, match=f"u7: '{word}' has no pronunciation"):
            spelling("u7", ["a", word])


def test_unknown_phone_in_the_lexicon_is_named() -> None:
    with pytest.raises(DataError, match="'ax' has the unknown phone 'x'"):
        Spelling(ModelLexicon(["sil", "a"], {"ax": [("a", "x")]}))


def test_transitions_are_probabilities() -> None:
    moves = Transitions.estimate(np.array([[0.0, 0.0], [1e6, 0.0], [5.0, 5.0]]))
    assert np.allclose(np.exp(moves.stay) + np.exp(moves.leave), 1.0)
    assert np.exp(moves.stay)[0] == pytest.approx(0.75)
    assert np.exp(moves.stay)[1] == pytest.approx(0.99)
