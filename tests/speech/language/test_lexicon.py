"""Lexica: reading what is around, guessing the rest, losing nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import DataError
from roundelay.speech.language.lexicon import Lexicon, complete_lexicon, guess_graphemes, read_pronunciations

CMU = """;;; The CMU dictionary
A  AH0
A(2)  EY1
ABBEY  AE1 B IY0 # a place
'BOUT  B AW1 T
"""


def test_ids_begin_with_silence(tmp_path: Path) -> None:
    lexicon = Lexicon({"NO": [("N", "OW")], "A": [("AH",), ("EY",)]})
    assert lexicon.phones == ["sil", "AH", "EY", "N", "OW"]
    assert lexicon.phone_ids == {"sil": 1, "AH": 2, "EY": 3, "N": 4, "OW": 5}
    assert lexicon.word_ids == {"A": 1, "NO": 2}
    assert lexicon.phone_sequence(["NO", "A"]) == [4, 5, 2]
    lexicon.write_symbols(tmp_path / "phones.txt", tmp_path / "words.txt")
    assert (tmp_path / "phones.txt").read_text() == "<eps> 0\nsil 1\nAH 2\nEY 3\nN 4\nOW 5\n"
    assert (tmp_path / "words.txt").read_text() == "<eps> 0\nA 1\nNO 2\n#0 3\n"


def test_round_trip(tmp_path: Path) -> None:
    lexicon = Lexicon({"NO": [("N", "OW")], "A": [("AH",), ("EY",)]})
    lexicon.write(tmp_path / "lexicon.txt")
    assert Lexicon.read(tmp_path / "lexicon.txt").pronunciations == lexicon.pronunciations


def test_cmu_dictionary(tmp_path: Path) -> None:
    (tmp_path / "cmudict").write_text(CMU)
    assert read_pronunciations(tmp_path / "cmudict") == {
        "A": [("AH",), ("EY",)],
        "ABBEY": [("AE", "B", "IY")],
        "'BOUT": [("B", "AW", "T")],
    }
    assert read_pronunciations(tmp_path / "cmudict", only=["abbey", "zoo"]) == {"abbey": [("AE", "B", "IY")]}


def test_kaldi_lexicon_with_probabilities(tmp_path: Path) -> None:
    (tmp_path / "lexiconp.txt").write_text("A 1.0 AH\nA 0.5 EY\nNO 1e-1 N OW\n")
    assert read_pronunciations(tmp_path / "lexiconp.txt") == {"A": [("AH",), ("EY",)], "NO": [("N", "OW")]}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"A AH\nNO\n", r"lexicon.txt:2: 'NO' has no phones"),
        (b"", "lexicon.txt: no word in it"),
        (b"gr\xfcn K\n", "lexicon.txt:1: not UTF-8"),
        (b"<s> AH\n", "'<s>' cannot be a word"),
        (b"A #1\n", "lexicon.txt:1: 'A' has no phones"),
        (b"A <x>\n", "'<x>', which cannot be a phone"),
    ],
)
def test_bad_lexicon(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "lexicon.txt").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        Lexicon.read(tmp_path / "lexicon.txt")


def test_unknown_words_are_listed_and_none_vanishes() -> None:
    known: dict[str, list[tuple[str, ...]]] = {"A": [("AH",)]}
    lexicon = complete_lexicon(["A", "CAB", "BAD"], known, guess_graphemes)
    assert lexicon.unknown == ("BAD", "CAB")
    assert lexicon["CAB"] == [("_c", "_a", "_b")]
    assert lexicon.words == ["A", "BAD", "CAB"]
    assert known == {"A": [("AH",)]}


def test_a_word_without_pronunciation_is_named() -> None:
    with pytest.raises(DataError, match=r"corpus: no pronunciation of BAD, CAB; add them"):
        complete_lexicon(["A", "CAB", "BAD"], {"A": [("AH",)]}, where="corpus")
    with pytest.raises(DataError, match="no pronunciation of @@"):
        complete_lexicon(["@@"], {}, guess_graphemes)
    with pytest.raises(DataError, match="'ZOO' has no pronunciation"):
        Lexicon({"A": [("AH",)]})["ZOO"]


def test_missing() -> None:
    assert Lexicon({"A": [("AH",)]}).missing(["B", "A", "B"]) == ["B"]


@pytest.mark.parametrize("name", ["an4", "fsdd", "librispeech-50min"])
def test_real_lexica_cover_their_texts(corpora: Path, name: str) -> None:
    lexicon = Lexicon.read(corpora / name / "lexicon.txt")
    words = (corpora / name / "words.txt").read_text().split()
    assert lexicon.missing(words) == []
