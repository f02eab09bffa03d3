"""Normalise features to mean 0 and variance 1 over a speaker, an utterance, or all utterances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Scope = Literal["speaker", "utterance", "global", "none"]
SCOPES: tuple[Scope, ...] = ("speaker", "utterance", "global", "none")

FLOOR = 1e-5  # of the variance, so that a silent channel stays finite


@dataclass
class Moments:
    """Sums of frames and of their squares, in float64; they add up over utterances."""

    count: float
    sums: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]

    @staticmethod
    def from_frames(x: Array) -> Moments:
        """Sum over the frames of one utterance (T, F)."""
        wide = x.astype(np.float64)
        return Moments(float(len(x)), wide.sum(0), np.square(wide).sum(0))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.sums + other.sums, self.squares + other.squares)

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Return the mean of each feature."""
        mean: npt.NDArray[np.float64] = self.sums / max(self.count, 1.0)
        return mean

    @property
    def deviation(self) -> npt.NDArray[np.float64]:
        """Return the standard deviation of each feature."""
        variance: npt.NDArray[np.float64] = self.squares / max(self.count, 1.0) - self.mean**2
        return np.sqrt(np.maximum(variance, FLOOR))

    def apply(self, x: Array) -> Array:
        """Normalise frames (T, F) by these moments."""
        return np.asarray((x - self.mean.astype(np.float32)) / self.deviation.astype(np.float32), np.float32)


def moments_group(scope: Scope, speaker: str) -> str:
    """Return the name of the group whose moments normalise a speaker's utterances."""
    return speaker if scope == "speaker" else ""


def pool_moments(parts: Iterable[tuple[str, Moments]]) -> dict[str, Moments]:
    """Add up the moments of each group."""
    result: dict[str, Moments] = {}
    for name, moments in parts:
        result[name] = result[name] + moments if name in result else moments
    return result
