"""Count the closure of a voiceless stop to the stop.

espeak-ng reports a p, t or k at its burst, some 40 ms after the mouth has closed: the silence in between is counted to
the sound before.  Phoneticians and forced aligners count it to the stop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roundelay.corpora.espeak import SpokenText
from roundelay.corpora.synthetic.espeak_phones import CLOSED, SILENCE, Phone

_STEP_SECONDS = 0.0025
_LONGEST_SECONDS = 0.08
_DROP_DECIBELS = 18.0


def move_closures(phones: list[Phone], spoken: SpokenText, rate: int) -> list[Phone]:
    """Move the begin of each stop back to the end of the sound before it."""
    moved = list(phones)
    for i in range(1, len(moved)):
        before, phone = moved[i - 1], moved[i]
        if phone.name in CLOSED and before.name != SILENCE:
            begin = _closing(before, phone, spoken, rate)
            moved[i - 1] = Phone(before.name, before.begin, begin, before.word)
            moved[i] = Phone(phone.name, begin, phone.end, phone.word)
    return moved


def _closing(before: Phone, phone: Phone, spoken: SpokenText, rate: int) -> int:
    """Find the begin of the closure: the begin of the word if espeak reports it, otherwise the drop of the level."""
    step = int(_STEP_SECONDS * rate)
    earliest = max(before.begin + 4 * step, phone.begin - int(_LONGEST_SECONDS * rate))
    if phone.word != before.word and before.begin < spoken.words[phone.word] <= phone.begin:
        return max(spoken.words[phone.word], min(earliest, phone.begin))
    loudest = max(_level(spoken.samples[at : at + step]) for at in range(before.begin, phone.begin, step))
    begin = phone.begin
    while begin - step >= earliest and _level(spoken.samples[begin - step : begin]) < loudest - _DROP_DECIBELS:
        begin -= step
    return begin


def _level(samples: NDArray[np.int16]) -> float:
    power = float(np.mean(samples.astype(np.float64) ** 2)) if len(samples) else 0.0
    return float(10 * np.log10(power + 1.0))
