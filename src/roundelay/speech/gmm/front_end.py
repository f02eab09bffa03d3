"""Features for Gaussian mixtures: cepstra, normalised, with deltas or spliced and projected.

T frames, F features as given, C cepstra, D features of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from roundelay.errors import DataError
from roundelay.speech.features.mel_features import append_deltas, splice
from roundelay.speech.gmm.arrays import Array, Features, Speakers, product

Input = Literal["fbank", "mfcc", "final"]


@dataclass(frozen=True, slots=True)
class Normaliser:
    """Mean and inverse standard deviation of a speaker's cepstra, (C,) each."""

    mean: Array
    scale: Array

    @classmethod
    def from_moments(cls, count: float, total: Array, squares: Array) -> Normaliser:
        """Compute mean and deviation from sums over frames."""
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 1e-6))
        return cls(mean.astype(np.float32), (1.0 / deviation).astype(np.float32))


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Turn stored features (T, F) into the model's (T, D).

    ``fbank`` is log-mel energies, to which a DCT is applied; ``mfcc`` is static cepstra.  Both are normalised by
    speaker and get deltas of two orders.  With a ``projection`` (D, (2 context + 1) C) they are spliced and projected
    instead.  ``final`` features are used without change, except for the projection.
    """

    input: Input = "fbank"
    num_cepstra: int = 13
    variance: bool = False  # whether to normalise the variance as well as the mean
    context: int = 4
    projection: Array | None = None

    def cepstra(self, features: Array) -> Array:
        """Return the static cepstra, not yet normalised: (T, C)."""
        x = np.asarray(features, dtype=np.float32)
        return product(x, _dct(x.shape[1], self.num_cepstra)) if self.input == "fbank" else x

    def normalised(self, features: Array, normaliser: Normaliser | None) -> Array:
        """Return the static cepstra, normalised."""
        x = self.cepstra(features)
        if self.input == "final" or normaliser is None:
            return x
        x = x - normaliser.mean
        return x * normaliser.scale if self.variance else x

    def __call__(self, features: Array, normaliser: Normaliser | None, transform: Array | None = None) -> Array:
        """Return the model's features, transformed by a speaker's fMLLR matrix (D, D + 1) if given."""
        x = self.normalised(features, normaliser)
        if self.projection is not None:
            x = product(self.spliced(x), self.projection.T)
        elif self.input != "final":
            x = append_deltas(x)
        return x if transform is None else product(x, transform[:, :-1].T) + transform[:, -1]

    def spliced(self, cepstra: Array) -> Array:
        """Concatenate the cepstra of neighbouring frames: (T, (2 context + 1) C)."""
        return splice(cepstra, self.context, self.context)

    def describe(self) -> dict[str, Any]:
        """Return all fields but the projection, for a file."""
        names = ("input", "num_cepstra", "variance", "context")
        return {name: getattr(self, name) for name in names}

    def projected(self, projection: Array) -> FrontEnd:
        """Return a front end that splices and projects instead of adding deltas."""
        return replace(self, projection=projection.astype(np.float32))


@lru_cache(maxsize=8)
def _dct(num_bins: int, num_cepstra: int) -> Array:
    """Return the orthonormal DCT-II as a matrix (num_bins, num_cepstra)."""
    if num_cepstra > num_bins:
        raise DataError(f"{num_cepstra} cepstra cannot be made of {num_bins} log-mel energies")
    angles = np.pi / num_bins * (np.arange(num_bins)[:, None] + 0.5) * np.arange(num_cepstra)
    table = np.cos(angles) * math.sqrt(2.0 / num_bins)
    table[:, 0] /= math.sqrt(2.0)
    rounded: Array = table.astype(np.float32)
    return rounded


def check_features(utterance: str, features: Array) -> None:
    """Raise if features are empty or not finite; the error names the utterance."""
    if features.ndim != 2 or not features.size:
        raise DataError(f"{utterance}: features of shape {features.shape}; a matrix (frames, features) was expected")
    if not np.isfinite(features).all():
        frame = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise DataError(f"{utterance}: features are not finite at frame {frame}")


def collect_normalisers(
    front_end: FrontEnd, features: Features, utterances: list[str], speakers: Speakers | None
) -> tuple[dict[str, Normaliser], dict[str, int]]:
    """Read all features once: normalisers by speaker (by utterance without speakers), and lengths in frames."""
    sums: dict[str, list[Array]] = {}
    lengths: dict[str, int] = {}
    width = 0
    for utterance in utterances:
        x = np.asarray(features[utterance])
        check_features(utterance, x)
        width = width or x.shape[1]
        if x.shape[1] != width:
            raise DataError(f"{utterance}: {x.shape[1]} features per frame, but the utterances before have {width}")
        lengths[utterance] = len(x)
        wide = front_end.cepstra(x).astype(np.float64)
        moments = [np.array(float(len(wide))), wide.sum(0), (wide * wide).sum(0)]
        speaker = speakers[utterance] if speakers is not None else utterance
        sums[speaker] = [a + b for a, b in zip(sums[speaker], moments, strict=True)] if speaker in sums else moments
    return {s: Normaliser.from_moments(float(count), *rest) for s, (count, *rest) in sums.items()}, lengths
