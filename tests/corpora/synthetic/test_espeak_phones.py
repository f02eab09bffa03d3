"""Translation of espeak-ng's phonemes."""

from __future__ import annotations

import numpy as np
import pytest

from roundelay.corpora.espeak import SpokenText
from roundelay.corpora.synthetic.espeak_phones import Phone, list_phones, list_pronunciations
from roundelay.errors import DataError


def test_phones_end_where_the_next_begin_and_pauses_are_joined() -> None:
    phonemes = [(0, "t"), (10, "'u:"), (30, "_:"), (35, "_"), (40, "w"), (60, "V"), (80, ";")]
    text = SpokenText(np.zeros(100, np.int16), [0, 40], phonemes, [0, 0, 0, 0, 1, 1, 1])
    assert list_phones(text) == [
        Phone("T", 0, 10, 0), Phone("UW", 10, 30, 0), Phone("SIL", 30, 40, -1), Phone("W", 40, 60, 1),
        Phone("AH", 60, 100, 1),
    ]  # fmt: skip
    assert list_pronunciations(text, 2) == [("T", "UW"), ("W", "AH")]


def test_words_that_espeak_joined_or_left_out_are_errors() -> None:
    with pytest.raises(DataError, match="spoke 2 words as 1"):
        list_pronunciations(SpokenText(words=[0]), 2)
    with pytest.raises(DataError, match="left a word without phonemes"):
        list_pronunciations(SpokenText(words=[0, 5], phonemes=[(0, "t")], owners=[0]), 2)
    with pytest.raises(DataError, match="phoneme 'Q' has no phone in the table"):
        list_phones(SpokenText(words=[0], phonemes=[(0, "Q")], owners=[0]))
