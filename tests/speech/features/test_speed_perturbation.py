"""Speech at another speed."""

from __future__ import annotations

import numpy as np
import pytest

from roundelay.errors import SettingsError
from roundelay.speech.features.speed_perturbation import change_speed, copy_name


def test_speed_changes_length_and_pitch() -> None:
    rate = 16000
    tone = np.sin(2 * np.pi * 500 * np.arange(rate) / rate).astype(np.float32)
    slow = change_speed(tone, 0.9, rate)
    assert abs(len(slow) - rate / 0.9) <= 1
    spectrum = np.abs(np.fft.rfft(slow))
    assert abs(np.argmax(spectrum) * rate / len(slow) - 450) < 2
    assert change_speed(tone, 1.0, rate) is tone
    assert copy_name("u", 0.9) == "sp0.9-u"
    assert copy_name("u", 1.0) == "u"
    with pytest.raises(SettingsError, match="speed"):
        change_speed(tone, 3.0, rate)
