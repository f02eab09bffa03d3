"""Background noise and rooms from a random generator; the timing of speech does not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]


def white(rng: np.random.Generator, num_samples: int, rate: int) -> Samples:
    """Make noise with the same power at all frequencies."""
    del rate
    return rng.standard_normal(num_samples)


def pink(rng: np.random.Generator, num_samples: int, rate: int) -> Samples:
    """Make noise whose power decreases with frequency, like a quiet room."""
    return _coloured(rng, num_samples, rate, power=1.0)


def traffic(rng: np.random.Generator, num_samples: int, rate: int) -> Samples:
    """Make a low rumble that comes and goes."""
    rumble = _coloured(rng, num_samples, rate, power=2.0)
    time = np.arange(num_samples) / rate
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * (rng.uniform(0.1, 0.4) * time + rng.uniform()))
    return rumble * swell + 0.02 * rng.standard_normal(num_samples)


def hum(rng: np.random.Generator, num_samples: int, rate: int) -> Samples:
    """Make the hum of the mains with its harmonics, and a little hiss."""
    base = (50.0, 60.0)[int(rng.integers(2))] * (1 + rng.uniform(-0.002, 0.002))
    time = np.arange(num_samples) / rate
    tones = [np.sin(2 * np.pi * (base * k * time + rng.uniform())) / k**0.7 for k in range(1, 20)]
    total: Samples = np.sum(tones, axis=0) + 0.15 * rng.standard_normal(num_samples)
    return total


def babble(rng: np.random.Generator, num_samples: int, voices: Sequence[Samples]) -> Samples:
    """Add up several voices, each repeated from a random position."""
    total = np.zeros(num_samples)
    for voice in voices:
        start = int(rng.integers(len(voice)))
        total += rng.uniform(0.5, 1.0) * voice[(start + np.arange(num_samples)) % len(voice)]
    return total


NOISES: dict[str, Callable[[np.random.Generator, int, int], Samples]] = {
    "white": white,
    "pink": pink,
    "traffic": traffic,
    "hum": hum,
}
"""Noise functions by name; babble is not here, since it needs voices."""

ROOMS = {"none": 0.0, "small": 0.2, "office": 0.4, "hall": 0.7}
"""Reverberation times in seconds, until the echo has decayed by 60 dB."""


def add_echo(rng: np.random.Generator, speech: Samples, seconds: float, rate: int) -> Samples:
    """Add the echo of a room: decaying noise after the direct sound, which is not shifted."""
    if seconds <= 0:
        return speech
    length = int(seconds * rate)
    time = np.arange(length) / rate
    tail = rng.standard_normal(length) * 10 ** (-3 * time / seconds)
    tail[: int(rng.uniform(0.002, 0.008) * rate)] = 0.0
    direct_over_echo = rng.uniform(2.0, 8.0)  # dB
    tail *= 10 ** (-direct_over_echo / 20) / np.sqrt(np.sum(tail**2))
    size = 1 << (len(speech) + length - 1).bit_length()
    echo: Samples = np.fft.irfft(np.fft.rfft(speech, size) * np.fft.rfft(tail, size), size)[: len(speech)]
    return speech + echo


def add_noise(speech: Samples, noise: Samples, active: slice, decibels: float) -> Samples:
    """Add noise so that active speech is ``decibels`` louder."""
    speech_power = float(np.mean(speech[active] ** 2))
    noise_power = max(float(np.mean(noise[active] ** 2)), 1e-20)
    gain = np.sqrt(speech_power / noise_power * 10 ** (-decibels / 10))
    mixed: Samples = speech + gain * noise
    return mixed


def _coloured(rng: np.random.Generator, num_samples: int, rate: int, *, power: float) -> Samples:
    size = 1 << max(1, num_samples - 1).bit_length()
    spectrum = np.fft.rfft(rng.standard_normal(size))
    frequency = np.maximum(np.fft.rfftfreq(size, 1 / rate), 20.0)
    shaped: Samples = np.fft.irfft(spectrum * (frequency / 1000.0) ** (-power / 2), size)[:num_samples]
    return shaped
