"""Words that are in no dictionary, pronounced by espeak-ng."""

from __future__ import annotations

import pytest


def test_espeak_guesses() -> None:
    pytest.importorskip("espeakng_loader")
    from roundelay.speech.language.espeak_pronunciations import EspeakPronouncer

    guess = EspeakPronouncer(["AA"])
    assert guess("ZEBRA") == [("Z", "IY", "B", "R", "AH")]
    assert guess("ZERO") == [("Z", "IH", "R", "OW")]
    assert EspeakPronouncer(["z", "iy"])("ZEBRA")[0][:2] == ("z", "iy")
