"""Log-mel and MFCC features as Kaldi computes them, deltas and splicing.

Legend: T frames, F features, S samples in a frame, N points of the Fourier transform, B mel bins.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta
from torch import Tensor

from roundelay.config import NonNegative, Share, check_bounds, limits
from roundelay.errors import SettingsError

Array = npt.NDArray[np.float32]

_EPSILON = 1.1920928955078125e-07  # what Kaldi floors energies to: the spacing of float32 at 1
_FULL_SCALE = 32768.0  # Kaldi's samples are 16-bit integers, ours lie in [-1, 1]
_FRAMES_AT_ONCE = 512  # bounds the memory of one call, and fits the second-level cache


@dataclass(frozen=True)
class FeatureSettings:
    """How features are computed; the defaults are those of Kaldi's recipes."""

    kind: Literal["fbank", "mfcc"] = "fbank"
    num_bins: Annotated[int, limits(ge=3, largest=1024)] = 40
    num_ceps: Annotated[int, limits(ge=1, largest=1024)] = 13
    rate: Annotated[int, limits(ge=100, largest=1_000_000)] = 16000
    frame_shift_seconds: Annotated[float, Meta(gt=0, le=1)] = 0.010
    frame_length_seconds: Annotated[float, Meta(gt=0, le=1)] = 0.025
    snip_edges: bool = True
    """Whether all frames are inside the audio; otherwise its ends are mirrored and there is one frame per shift."""
    low_freq: NonNegative = 20.0
    high_freq: float = 0.0
    """Upper end of the mel bins in Hz; zero or less is relative to half the rate."""
    dither: NonNegative = 0.0
    """Standard deviation of the noise added to 16-bit samples; the same noise in every run."""
    preemphasis: Share = 0.97
    cepstral_lifter: NonNegative = 22.0
    use_energy: bool = False
    """MFCC only: use the frame's log energy as first coefficient."""

    def __post_init__(self) -> None:
        if self.kind not in ("fbank", "mfcc"):
            raise SettingsError(f"features.kind must be fbank or mfcc, not {self.kind!r}")
        check_bounds(self, "features.")
        if self.num_ceps > self.num_bins:
            raise SettingsError(f"features.num_ceps must be at most num_bins, {self.num_bins}, not {self.num_ceps}")
        if self.frame_shift < 1 or self.frame_length < 2:
            raise SettingsError("features: frame shift and length must be at least one and two samples")
        if not 0 <= self.low_freq < self.top_freq <= self.rate / 2:
            raise SettingsError(
                f"features: 0 <= low_freq < high_freq <= {self.rate / 2:g} must hold, "
                f"not {self.low_freq:g} and {self.top_freq:g}"
            )

    @property
    def frame_shift(self) -> int:
        """Return the shift in samples."""
        return int(self.rate * self.frame_shift_seconds + 1e-6)

    @property
    def frame_length(self) -> int:
        """Return the length in samples."""
        return int(self.rate * self.frame_length_seconds + 1e-6)

    @property
    def top_freq(self) -> float:
        """Return the upper end of the highest mel bin, in Hz."""
        return self.high_freq if self.high_freq > 0 else self.rate / 2 + self.high_freq

    @property
    def dim(self) -> int:
        """Return the number of features per frame."""
        return self.num_bins if self.kind == "fbank" else self.num_ceps


def num_frames(num_samples: int, settings: FeatureSettings) -> int:
    """Return the number of frames of ``num_samples`` samples."""
    shift, length = settings.frame_shift, settings.frame_length
    if settings.snip_edges:
        return 0 if num_samples < length else 1 + (num_samples - length) // shift
    return (num_samples + shift // 2) // shift


def extract(samples: npt.NDArray[np.floating], settings: FeatureSettings) -> Array:
    """Compute features (T, F) of samples in [-1, 1]; audio shorter than a frame gives no frames."""
    count = num_frames(len(samples), settings)
    result = np.empty((count, settings.dim), np.float32)
    if count == 0:
        return result
    with torch.inference_mode():
        signal = _padded(torch.from_numpy(np.ascontiguousarray(samples, np.float32)) * _FULL_SCALE, count, settings)
        if settings.dither:
            noise = torch.randn(len(signal), generator=torch.Generator().manual_seed(len(signal)))
            signal = signal + settings.dither * noise
        out = torch.from_numpy(result)
        length, shift = settings.frame_length, settings.frame_shift
        for first in range(0, count, _FRAMES_AT_ONCE):
            last = min(first + _FRAMES_AT_ONCE, count)
            part = signal[first * shift : (last - 1) * shift + length]
            _compute(part.unfold(0, length, shift), settings, out[first:last])
    return result


def _padded(signal: Tensor, count: int, settings: FeatureSettings) -> Tensor:
    """Cut the signal to its frames, or mirror its ends so that every frame is whole."""
    shift, length = settings.frame_shift, settings.frame_length
    needed = (count - 1) * shift + length
    if settings.snip_edges:
        return signal[:needed]
    size = len(signal)
    before = length // 2 - shift // 2
    after = needed - before - size
    mirrored = torch.cat([torch.arange(-before, 0), torch.arange(size, size + max(after, 0))]) % (2 * size)
    mirrored = torch.where(mirrored < size, mirrored, 2 * size - 1 - mirrored)
    parts = [signal[mirrored[:before]], signal, signal[mirrored[before:]]] if before >= 0 else [signal[-before:]]
    return torch.cat(parts)[:needed]


def _compute(raw: Tensor, settings: FeatureSettings, out: Tensor) -> None:
    """Fill ``out`` (T, F) from frames (T, S): subtract the mean, pre-emphasise, window, transform, log."""
    window, banks, cosines = _tables(settings)
    centred = raw - raw.mean(1, keepdim=True)
    size = 1 << (settings.frame_length - 1).bit_length()
    frames = raw.new_zeros(len(raw), size)
    inside = frames[:, : settings.frame_length]
    torch.sub(centred[:, 1:], centred[:, :-1], alpha=settings.preemphasis, out=inside[:, 1:])
    torch.mul(centred[:, 0], 1.0 - settings.preemphasis, out=inside[:, 0])
    inside *= window
    power = torch.view_as_real(torch.fft.rfft(frames)).square_().sum(-1)
    mel = (power[:, : size // 2] @ banks).clamp_min_(_EPSILON).log_()
    if settings.kind == "fbank":
        out.copy_(mel)
        return
    torch.mm(mel, cosines, out=out)
    if settings.use_energy:
        out[:, 0] = centred.square_().sum(1).clamp_min_(_EPSILON).log_()


@functools.lru_cache(maxsize=16)
def _tables(settings: FeatureSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Return Povey's window (S), mel triangles (N/2, B) and liftered cosines (B, F)."""
    window = torch.hann_window(settings.frame_length, periodic=False, dtype=torch.float64) ** 0.85
    size = 1 << (settings.frame_length - 1).bit_length()
    banks = _mel_banks(settings, size)
    bins = np.arange(settings.num_bins)
    order = np.arange(settings.num_ceps)
    cosines = np.cos(np.pi / settings.num_bins * (bins[:, None] + 0.5) * order) * math.sqrt(2 / settings.num_bins)
    cosines[:, 0] = math.sqrt(1 / settings.num_bins)
    lifter = settings.cepstral_lifter
    if lifter:
        cosines *= 1 + 0.5 * lifter * np.sin(np.pi * order / lifter)
    return window.float(), torch.from_numpy(banks.astype(np.float32)), torch.from_numpy(cosines.astype(np.float32))


def _mel_banks(settings: FeatureSettings, size: int) -> npt.NDArray[np.float64]:
    """Return triangles (N/2, B) that are equally spaced and overlap by half on the mel scale."""

    def mel(frequency: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
        return np.asarray(1127.0 * np.log1p(np.asarray(frequency) / 700.0))

    low, high = mel(settings.low_freq), mel(settings.top_freq)
    width = (high - low) / (settings.num_bins + 1)
    left = low + width * np.arange(settings.num_bins)
    points = mel(np.arange(size // 2, dtype=np.float64) * (settings.rate / size))[:, None]
    banks = np.clip(np.minimum((points - left) / width, (left + 2 * width - points) / width), 0.0, None)
    if not banks.any(0).all():
        empty = int(np.flatnonzero(~banks.any(0))[0])
        raise SettingsError(
            f"features: mel bin {empty} of {settings.num_bins} holds no point of the {size}-point transform; "
            "use fewer bins or longer frames"
        )
    return np.asarray(banks)


def append_deltas(x: Array, order: int = 2, window: int = 2) -> Array:
    """Append differences over time up to ``order``: (T, F) becomes (T, (order + 1) F).

    Each order is a regression over ``window`` frames on both sides of the order before; end frames are repeated.
    """
    if order == 0 or not len(x):
        return np.concatenate([x] * (order + 1), axis=1)
    kernel = np.ones(1)
    slopes = np.arange(-window, window + 1) / np.sum(np.arange(-window, window + 1) ** 2)
    parts = [x]
    for k in range(1, order + 1):
        kernel = np.convolve(kernel, slopes)
        reach = k * window
        padded = np.pad(x, ((reach, reach), (0, 0)), mode="edge")
        part = np.zeros_like(x)
        for i, weight in enumerate(kernel.astype(np.float32)):
            if weight:
                part += weight * padded[i : i + len(x)]
        parts.append(part)
    return np.concatenate(parts, axis=1)


def splice(x: Array, left: int, right: int) -> Array:
    """Concatenate each frame with its neighbours: (T, F) becomes (T, (left + 1 + right) F); end frames are repeated."""
    rows = np.arange(len(x))[:, None] + np.arange(-left, right + 1)
    spliced: Array = x[rows.clip(0, max(len(x) - 1, 0))].reshape(len(x), (left + 1 + right) * x.shape[1])
    return spliced
