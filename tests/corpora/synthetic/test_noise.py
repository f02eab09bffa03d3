from __future__ import annotations

import numpy as np
import pytest

from roundelay.corpora.synthetic import noise
from roundelay.corpora.synthetic.noise import Samples

RATE = 16000


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def low_share(samples: Samples) -> float:
    """Return the share of power below 500 Hz."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    return float(power[np.fft.rfftfreq(len(samples), 1 / RATE) < 500].sum() / power.sum())


@pytest.mark.parametrize("kind", noise.NOISES)
@pytest.mark.parametrize("length", [1, 7, 16000, 16001])
def test_noises_have_any_length_and_finite_samples(kind: str, length: int) -> None:
    samples = noise.NOISES[kind](rng(), length, RATE)
    assert samples.shape == (length,)
    assert np.isfinite(samples).all()
    assert np.array_equal(samples, noise.NOISES[kind](rng(), length, RATE))


def test_noises_differ_in_colour() -> None:
    share = {kind: low_share(make(rng(), 32000, RATE)) for kind, make in noise.NOISES.items()}
    assert share["white"] == pytest.approx(500 / 8000, abs=0.01)
    assert share["white"] < share["pink"] < share["traffic"]
    assert share["hum"] > 0.5


def test_the_snr_is_what_is_asked_for() -> None:
    speech = np.concatenate([np.zeros(4000), rng().standard_normal(8000), np.zeros(4000)])
    active = slice(4000, 12000)
    for decibels in (45.0, 20.0, 5.0):
        added = noise.add_noise(speech, noise.pink(rng(), 16000, RATE), active, decibels) - speech
        snr = 10 * np.log10(np.mean(speech[active] ** 2) / np.mean(added[active] ** 2))
        assert snr == pytest.approx(decibels, abs=1e-6)


def test_a_room_adds_echo_and_moves_nothing() -> None:
    click = np.zeros(8000)
    click[1000] = 1.0
    heard = noise.add_echo(rng(), click, noise.ROOMS["office"], RATE)
    assert len(heard) == len(click)
    assert np.argmax(np.abs(heard)) == 1000
    assert np.max(np.abs(heard[:1000])) < 1e-9
    tail = heard[1016:] ** 2
    assert tail[:2000].sum() > 20 * tail[4000:6000].sum() > 0
    assert np.array_equal(noise.add_echo(rng(), click, noise.ROOMS["none"], RATE), click)


def test_babble_is_all_voices_at_once() -> None:
    voices = [np.full(10, 1.0), np.full(7, 10.0)]
    total = noise.babble(rng(), 100, voices)
    assert total.shape == (100,)
    assert 5.5 <= total.min() <= total.max() <= 11
