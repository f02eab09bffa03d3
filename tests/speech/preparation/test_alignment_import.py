"""Imported alignments become paths of monophone states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.formats.alignment_files import Interval
from roundelay.speech.gmm.alignment import Alignment
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.preparation.alignment_import import Grid, Importer, Piece, read_all

LEXICON = Lexicon({"AB": [("A", "B")], "B": [("B",)]})
GRID = Grid(0.01, 0.0125)


def imported(labels: list[Piece], words: tuple[str, ...] = ("AB",)) -> Alignment:
    found = Importer(LEXICON, Path("x")).path("u", words, lambda _: labels, sum(n for _, n in labels))
    assert isinstance(found, Alignment)
    return found


def test_frames_are_labelled_by_their_middles() -> None:
    cut = GRID.pieces([Interval(0.02, 0.05, "A"), Interval(0.05, 0.0624, "B")])
    assert cut(8) == [("", 1), ("A", 3), ("B", 1), ("", 3)]


def test_phones_are_divided_evenly_into_three_states() -> None:
    found = imported([("sil", 3), ("A", 4), ("B", 3)])
    assert found.phones.tolist() == [0, 1, 2]
    assert found.words.tolist() == [-1, 0, 0]
    assert found.starts.tolist() == [0, 3, 7, 10]
    assert found.states.tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1, 2]
    assert found.senones.tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 7, 8]


def test_states_of_htk_are_kept_and_a_repeated_phone_begins_again() -> None:
    found = imported([("a_s2_1", 1), ("a_s3_1", 2), ("a_s4_1", 1), ("A[2]", 1), ("A[4]", 1)])
    assert found.starts.tolist() == [0, 4, 6]
    assert found.states.tolist() == [0, 1, 1, 2, 0, 2]
    assert found.words.tolist() == [-1, -1]  # the phones are not those of AB


def test_names_of_phones_are_found_in_other_spellings() -> None:
    assert imported([("a0", 3), ("b_E", 3), ("SP", 1)]).phones.tolist() == [1, 2, 0]
    with pytest.raises(DataError, match="utterance u has a phone that the lexicon lacks: 'Q'"):
        imported([("Q", 3)])


def test_a_wrong_number_of_frames_is_a_reason_not_an_error() -> None:
    found = Importer(LEXICON, Path("x")).path("u", ("AB",), lambda _: [("A", 2)], 3)
    assert found == "2 frames are aligned, but there are 3"


def test_utterances_of_a_file_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "states.txt"
    path.write_text("u1 B:4\nother A:3\n")
    found = dict(read_all(path, Importer(LEXICON, path), {"u1": ("B",), "u2": ("B",)}, {"u1": 4, "u2": 4}, GRID))
    assert found["u2"] == "not in states.txt"
    assert isinstance(found["u1"], Alignment)
    assert np.array_equal(found["u1"].words, [0])
