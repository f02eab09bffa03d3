"""Features against kaldi-native-fbank, and their own properties."""

from __future__ import annotations

from dataclasses import replace

import kaldi_native_fbank as knf
import numpy as np
import numpy.typing as npt
import pytest

from roundelay.errors import SettingsError
from roundelay.speech.features.mel_features import FeatureSettings, append_deltas, extract, num_frames, splice

Array = npt.NDArray[np.float32]

KINDS = [
    FeatureSettings(),
    FeatureSettings(num_bins=80),
    FeatureSettings(num_bins=80, snip_edges=False),
    FeatureSettings(num_bins=24, rate=8000, high_freq=-200.0),
    FeatureSettings(kind="mfcc", num_bins=23),
    FeatureSettings(kind="mfcc", num_bins=40, num_ceps=40, snip_edges=False, low_freq=60.0, high_freq=7600.0),
    FeatureSettings(kind="mfcc", num_bins=23, use_energy=True),
]


def oracle(samples: Array, settings: FeatureSettings) -> Array:
    options = knf.FbankOptions() if settings.kind == "fbank" else knf.MfccOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = settings.rate
    options.frame_opts.snip_edges = settings.snip_edges
    options.mel_opts.num_bins = settings.num_bins
    options.mel_opts.low_freq = settings.low_freq
    options.mel_opts.high_freq = settings.high_freq
    if settings.kind == "mfcc":
        options.num_ceps = settings.num_ceps
        options.use_energy = settings.use_energy
    computer = (knf.OnlineFbank if settings.kind == "fbank" else knf.OnlineMfcc)(options)
    computer.accept_waveform(settings.rate, samples * 32768)
    computer.input_finished()
    frames = [computer.get_frame(i) for i in range(computer.num_frames_ready)]
    return np.stack(frames) if frames else np.empty((0, settings.dim), np.float32)


def speechlike(seconds: float, rate: int) -> Array:
    """Noise whose level swings over 60 dB, with a tone and an offset: quiet frames are where rounding shows."""
    random = np.random.default_rng(0)
    time = np.arange(int(seconds * rate)) / rate
    level = 10 ** (-3 + 2.5 * np.sin(2 * np.pi * 3 * time))
    wave = 0.3 * level * random.standard_normal(len(time)) + 0.05 * level * np.sin(2 * np.pi * 440 * time) + 0.01
    return np.asarray(np.round(wave.clip(-1, 1) * 32767) / 32768, np.float32)


@pytest.mark.parametrize("settings", KINDS, ids=lambda s: f"{s.kind}{s.num_bins}-{s.rate}-{s.snip_edges}")
@pytest.mark.parametrize("num_samples", [0, 100, 199, 400, 401, 559, 560, 8000, 160000])
def test_equals_kaldi(settings: FeatureSettings, num_samples: int) -> None:
    samples = speechlike(10.0, settings.rate)[:num_samples]
    ours, theirs = extract(samples, settings), oracle(samples, settings)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape == (num_frames(len(samples), settings), settings.dim)
    np.testing.assert_allclose(ours, theirs, atol=5e-3, rtol=0)


def test_silence_is_floored() -> None:
    features = extract(np.zeros(16000, np.float32), FeatureSettings())
    assert np.allclose(features, np.log(np.finfo(np.float32).eps))


def test_dither_repeats_and_breaks_silence() -> None:
    settings = FeatureSettings(dither=1.0)
    once, again = (extract(np.zeros(16000, np.float32), settings) for _ in range(2))
    assert np.array_equal(once, again)
    assert once.min() > -5


def test_long_audio_equals_its_parts() -> None:
    samples = speechlike(20.0, 16000)
    whole = extract(samples, FeatureSettings())
    later = extract(samples[160 * 700 :], FeatureSettings())
    np.testing.assert_allclose(whole[700:], later, atol=1e-4)


@pytest.mark.parametrize(
    "bad",
    [{"num_bins": 2}, {"num_ceps": 41}, {"low_freq": 9000.0}, {"high_freq": 9000.0}, {"frame_shift_seconds": 0.0}],
)
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="features"):
        replace(FeatureSettings(), **bad)  # type: ignore[arg-type]


def test_too_many_bins_are_named() -> None:
    with pytest.raises(SettingsError, match="mel bin 2 of 200 holds no point"):
        extract(np.zeros(16000, np.float32), FeatureSettings(num_bins=200))


def test_deltas_of_a_line_and_a_parabola() -> None:
    time = np.arange(20, dtype=np.float32)[:, None]
    out = append_deltas(np.concatenate([3 * time, time**2], axis=1), order=2)
    assert out.shape == (20, 6)
    inside = slice(4, -4)
    np.testing.assert_allclose(out[inside, 2], 3, rtol=1e-6)
    np.testing.assert_allclose(out[inside, 3], 2 * time[inside, 0], rtol=1e-5)
    np.testing.assert_allclose(out[inside, 4], 0, atol=1e-5)
    np.testing.assert_allclose(out[inside, 5], 2, rtol=1e-4)


def test_deltas_are_regressions_with_repeated_ends() -> None:
    x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    padded = np.concatenate([x[:1]] * 2 + [x] + [x[-1:]] * 2)
    expected = sum(k * (padded[2 + k : 9 + k] - padded[2 - k : 9 - k]) for k in (1, 2)) / 10
    np.testing.assert_allclose(append_deltas(x, order=1)[:, 3:], expected, atol=1e-6)
    assert append_deltas(x[:0]).shape == (0, 9)


def test_splice_repeats_the_ends() -> None:
    x = np.arange(4, dtype=np.float32)[:, None]
    assert splice(x, 2, 1).tolist() == [[0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 3]]
    assert splice(x[:0], 2, 1).shape == (0, 4)
