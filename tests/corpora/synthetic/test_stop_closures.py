"""Closures of stops, on samples that are loud or silent."""

from __future__ import annotations

import numpy as np

from roundelay.corpora.espeak import SpokenText
from roundelay.corpora.synthetic.espeak_phones import Phone
from roundelay.corpora.synthetic.stop_closures import move_closures

RATE = 8000  # steps of 20 samples, at most 640 before a burst


def spoken(silent: slice, words: list[int]) -> SpokenText:
    samples = np.full(4000, 10_000, np.int16)
    samples[silent] = 0
    return SpokenText(samples, words)


def test_silence_before_a_stop_is_counted_to_the_stop() -> None:
    phones = [Phone("AE", 0, 2000, 0), Phone("T", 2000, 2400, 0), Phone("AE", 2400, 4000, 0)]
    moved = move_closures(phones, spoken(slice(1700, 2000), [0]), RATE)
    assert [(phone.begin, phone.end) for phone in moved] == [(0, 1700), (1700, 2400), (2400, 4000)]


def test_other_phones_and_stops_after_silence_stay() -> None:
    phones = [
        Phone("AE", 0, 2000, 0),
        Phone("S", 2000, 2400, 0),
        Phone("SIL", 2400, 3000, -1),
        Phone("K", 3000, 4000, 1),
    ]
    assert move_closures(phones, spoken(slice(1700, 2000), [0, 3000]), RATE) == phones


def test_a_closure_is_no_longer_than_80_ms() -> None:
    phones = [Phone("AE", 0, 3000, 0), Phone("P", 3000, 4000, 0)]
    moved = move_closures(phones, spoken(slice(1000, 3000), [0]), RATE)
    assert moved[1].begin == 3000 - 640


def test_at_the_begin_of_a_word_the_closure_begins_with_the_word() -> None:
    phones = [Phone("AE", 0, 2000, 0), Phone("T", 2000, 4000, 1)]
    moved = move_closures(phones, spoken(slice(0, 0), [0, 1800]), RATE)
    assert moved[1] == Phone("T", 1800, 4000, 1)
