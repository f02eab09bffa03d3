"""The synthesiser: samples, and words and phonemes with their times."""

from __future__ import annotations

import pytest

from roundelay.corpora.espeak import Espeak, Voice
from roundelay.errors import DataError

pytest.importorskip("espeakng_loader", reason="the extra synthetic is not installed")
VOICE = Voice("en-us", 175, 50, 50)


def test_words_and_phonemes_have_their_times() -> None:
    spoken = Espeak().say(VOICE, "zero one")
    assert len(spoken.words) == 2
    assert len(spoken.owners) == len(spoken.phonemes)
    begins = [begin for begin, _ in spoken.phonemes]
    assert begins == sorted(begins)
    assert 0 <= begins[0] <= begins[-1] <= len(spoken.samples)
    assert abs(spoken.samples.astype(int)).max() > 1000, "it is heard"
    assert spoken.owners == sorted(spoken.owners)


def test_a_faster_voice_takes_less_time() -> None:
    espeak = Espeak()
    slow, fast = (len(espeak.say(Voice("en-us", rate, 50, 50), "one two three").samples) for rate in (120, 240))
    assert fast < slow


def test_an_unknown_voice_is_named() -> None:
    with pytest.raises(DataError, match="espeak-ng has no voice 'xx-nowhere'"):
        Espeak().say(Voice("xx-nowhere", 175, 50, 50), "one")


def test_nothing_is_said_of_nothing() -> None:
    spoken = Espeak().say(VOICE, "")
    assert spoken.words == []
    assert all(symbol.startswith("_") for _, symbol in spoken.phonemes), "pauses alone"
    assert Espeak().version[0].isdigit()
