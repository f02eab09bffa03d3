"""Sets of utterances and passes over them, on a few frames."""

from __future__ import annotations

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.gmm import corpus_passes
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.gmm.corpus_passes import UtteranceSet, count_moves
from roundelay.speech.gmm.front_end import FrontEnd
from roundelay.speech.gmm.hmm import Spelling
from roundelay.speech.gmm.hmm_gmm import ModelLexicon

LEXICON = ModelLexicon(["sil", "a"], {"A": [("a",)]})
LENGTHS = {"u1": 7, "u2": 3, "u3": 5}


def opened(speakers: dict[str, str] | None = None) -> UtteranceSet:
    rng = np.random.default_rng(0)
    features = {name: rng.standard_normal((length, 2)).astype(np.float32) for name, length in LENGTHS.items()}
    transcripts = dict.fromkeys(features, ("A",))
    return UtteranceSet.open(features, transcripts, speakers, Spelling(LEXICON), FrontEnd("final"))


def test_utterances_are_listed_by_length_and_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened()
    assert found.utterances == ["u2", "u3", "u1"]
    assert found.num_frames == 15
    monkeypatch.setattr(corpus_passes, "FRAMES_PER_CHUNK", 8)
    assert [[item.utterance for item in chunk] for chunk in found.chunks()] == [["u2", "u3"], ["u1"]]
    assert list(found.aligned_chunks()) == []


def test_a_chunk_for_each_speaker_has_no_more_than_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened({"u1": "s", "u2": "s", "u3": "t"})
    assert [[item.utterance for item in chunk] for chunk in found.speaker_chunks()] == [["u1", "u2"], ["u3"]]
    monkeypatch.setattr(corpus_passes, "FRAMES_PER_SPEAKER", 7)
    assert [[item.utterance for item in chunk] for chunk in found.speaker_chunks()] == [["u1"], ["u3"]]


def test_a_subset_does_not_change_the_whole() -> None:
    whole = opened()
    some = whole.subset(["u2"])
    assert some.num_frames == 3
    empty = np.zeros(0, np.int32)
    some.alignments["u2"] = Alignment(empty, empty, np.zeros(1, np.int32), empty, empty)
    assert not whole.alignments


def test_an_utterance_without_speaker_or_features_is_an_error() -> None:
    with pytest.raises(DataError, match="u3: has no speaker"):
        opened({"u1": "s", "u2": "s"})
    with pytest.raises(DataError, match="u: has a transcript but no features"):
        UtteranceSet.open({}, {"u": ("A",)}, None, Spelling(LEXICON), FrontEnd("final"))
    with pytest.raises(DataError, match="no utterance has a transcript"):
        UtteranceSet.open({}, {}, None, Spelling(LEXICON), FrontEnd("final"))


def test_moves_are_counted_within_and_between_phones() -> None:
    """Two equal phones in a row: their states are left between them, although the senones repeat."""
    states = np.array([0, 0, 1, 2, 0, 1, 2, 2], np.int8)
    path = Alignment(np.array([1, 1]), np.array([0, 0]), np.array([0, 4, 8]), states, states.astype(np.int32))
    moves = np.zeros((3, 2))
    count_moves(moves, path)
    assert moves.tolist() == [[1, 2], [0, 2], [1, 2]]
    assert path.word_spans() == {0: (0, 8)}
