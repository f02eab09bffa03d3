"""Speaker vectors of prepared data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

import tone_corpus
from roundelay.speech.preparation.pipeline import IvectorSettings, open_prepared, prepare


def test_vectors_stand_for_speakers(data: Path) -> None:
    opened = open_prepared(data)
    for split in opened.splits:
        vectors, speakers = opened.ivectors(split), opened.speakers(split)
        assert vectors.dim == 4
        assert vectors.ids == opened.features(split).ids
        by_speaker = {speakers[name]: vectors[name] for name in vectors}
        assert len({row.tobytes() for row in by_speaker.values()}) == 2
        for name in vectors:
            assert vectors[name].shape == (1, 4)
            assert np.array_equal(vectors[name], by_speaker[speakers[name]])


def test_vectors_hear_what_normalisation_took_out(tmp_path: Path) -> None:
    """A voice through a duller channel has another vector, though its normalised features hardly differ."""
    tone_corpus.make(tmp_path / "corpus", train=12, dev=12)
    for path in sorted((tmp_path / "corpus").glob("*/*1-u*.wav")):
        samples, rate = soundfile.read(path)
        soundfile.write(path, np.convolve(samples, [0.3, 0.3, 0.2, 0.1])[: len(samples)], rate, subtype="PCM_16")
    settings = replace(tone_corpus.SETTINGS, ivectors=IvectorSettings(1, num_gaussians=2))
    data = prepare(tmp_path / "corpus", tmp_path / "data", settings).data
    found = {data.speakers(s)[n]: float(rows[0, 0]) for s in data.splits for n, rows in data.ivectors(s).items()}
    apart = abs(found["train0"] - found["train1"])
    assert apart > 0.5
    assert abs(found["dev0"] - found["train0"]) < 0.5 * apart
    assert abs(found["dev1"] - found["train1"]) < 0.5 * apart
