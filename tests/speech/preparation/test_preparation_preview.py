"""Hours of utterances, and about how long stages take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from roundelay.corpora.data_directory import Utterance
from roundelay.speech.preparation.preparation_preview import expected_seconds, hours_of


def test_hours_by_headers_and_by_segments(tmp_path: Path) -> None:
    audio = tmp_path / "x.wav"
    soundfile.write(audio, np.zeros(72_000), 8000)  # nine seconds
    whole = Utterance("a", audio, "s", ())
    part = Utterance("b", audio, "s", (), begin=1.0, end=4.0)
    rest = Utterance("c", audio, "s", (), begin=3.0)
    assert hours_of([whole, part, rest]) * 3600 == pytest.approx(9 + 3 + 6)


def test_more_jobs_and_fewer_stages_take_less_time() -> None:
    splits = {"train": (100, 10.0)}
    whole = expected_seconds(["features", "hmm", "alignment"], splits, 1)
    assert expected_seconds(["features", "hmm", "alignment"], splits, 4) < whole / 3
    assert expected_seconds(["alignment"], splits, 1) < whole
    assert expected_seconds([], splits, 1) == 0
