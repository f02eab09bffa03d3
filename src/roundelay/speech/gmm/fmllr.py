"""Adapt features to a speaker by a linear transform with maximum likelihood (fMLLR, also called CMLLR).

D features, T frames; a speaker's matrix W is (D, D + 1) and acts on (x, 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from roundelay.errors import DataError
from roundelay.speech.gmm.arrays import Array, Features, Speakers, read_tensors, tensor, write_tensors
from roundelay.speech.gmm.front_end import FrontEnd, Normaliser
from roundelay.speech.gmm.gaussian_mixtures import Gmm, expand

MIN_FRAMES = 300.0  # a speaker with less speech stays unadapted
_AT_ONCE = 1024


@dataclass(slots=True)
class FmllrStatistics:
    """Statistics of a speaker's matrix; ``+=`` adds others."""

    linear: Array  # (D, D + 1)
    quadratic: Array  # (D, D + 1, D + 1)
    frames: float = 0.0

    @classmethod
    def empty(cls, num_features: int) -> FmllrStatistics:
        """Start at zero."""
        wide = num_features + 1
        return cls(np.zeros((num_features, wide)), np.zeros((num_features, wide, wide)))

    def __iadd__(self, other: FmllrStatistics) -> FmllrStatistics:
        self.linear += other.linear
        self.quadratic += other.quadratic
        self.frames += other.frames
        return self


def collect_fmllr(gmm: Gmm, frames: Array, senones: Array, *, adapted: Array | None = None) -> FmllrStatistics:
    """Sum statistics of unadapted frames (T, D) aligned to senones; posteriors are those of ``adapted`` if given."""
    num = gmm.num_features
    precision = torch.zeros(len(frames), num)  # sum over Gaussians of share / variance
    pull = torch.zeros(len(frames), num)  # the same times the mean
    order = np.argsort(senones, kind="stable")
    expanded = expand((frames if adapted is None else adapted)[order])
    bounds = np.searchsorted(senones[order], np.arange(gmm.num_senones + 1))
    inverse = torch.from_numpy(1.0 / gmm.variances).float()
    scaled = torch.from_numpy(gmm.means / gmm.variances).float()
    for senone in np.unique(senones):
        own = slice(int(bounds[senone]), int(bounds[senone + 1]))
        shares, _ = gmm.posteriors(int(senone), expanded[own])
        gaussians = slice(int(gmm.first[senone]), int(gmm.first[senone + 1]))
        precision[own], pull[own] = shares @ inverse[gaussians], shares @ scaled[gaussians]
    wide = torch.cat([tensor(frames[order]), torch.ones(len(frames), 1)], dim=1)
    quadratic = torch.zeros(num, num + 1, num + 1, dtype=torch.float64)
    for part in torch.arange(len(frames)).split(_AT_ONCE):
        x = wide[part]
        quadratic += ((precision[part].T[:, None] * x.T[None]) @ x).double()
    return FmllrStatistics((pull.double().T @ wide.double()).numpy(), quadratic.numpy(), float(len(frames)))


def estimate_fmllr(statistics: FmllrStatistics, iterations: int = 15, min_frames: float = MIN_FRAMES) -> Array:
    """Estimate a speaker's matrix row by row; return the identity if there is too little speech.

    Row i is (α p + k) G^-1 with p the cofactors of row i and α the better root of
    α² p G^-1 p' + α p G^-1 k' - N = 0.  (Gales 1998, "Maximum likelihood linear transformations for HMM-based speech
    recognition", appendix B.)
    """
    num = len(statistics.linear)
    matrix = np.eye(num, num + 1)
    if statistics.frames < min_frames:
        return matrix
    # A small multiple of the identity keeps the statistics invertible in directions without variation.
    ridge = 1e-6 * statistics.quadratic.trace(axis1=1, axis2=2) / (num + 1)
    quadratic = statistics.quadratic + ridge[:, None, None] * np.eye(num + 1)
    inverse = np.linalg.inv(quadratic)
    free = np.einsum("dij,dj->di", inverse, statistics.linear)
    for _ in range(iterations):
        back = np.linalg.inv(matrix[:, :-1])
        for d in range(num):
            cofactors = np.append(back[:, d], 0.0)
            along = inverse[d] @ cofactors
            row = _root(cofactors @ along, cofactors @ free[d], statistics.frames) * along + free[d]
            # Only row d of A changed: the inverse is updated by the Sherman-Morrison formula.
            change = (row - matrix[d])[:-1] @ back
            back = back - np.outer(back[:, d], change) / (1.0 + change[d])
            matrix[d] = row
    return matrix


def _root(square: float, linear: float, frames: float) -> float:
    """Solve α² square + α linear = frames for the α of the higher likelihood."""
    wide = np.sqrt(linear**2 + 4.0 * square * frames)
    roots = [(-linear + wide) / (2.0 * square), (-linear - wide) / (2.0 * square)]
    return float(max(roots, key=lambda a: frames * np.log(abs(a * square + linear)) - 0.5 * a * a * square))


@dataclass(frozen=True)
class SpeakerTransforms:
    """The front end and each speaker's normaliser and matrix: they turn stored features into adapted ones."""

    front_end: FrontEnd
    normalisers: dict[str, Normaliser]
    matrices: dict[str, Array]

    def __call__(self, speaker: str, features: Array) -> Array:
        """Adapt the features (T, F) of one of the speakers: (T, D)."""
        if speaker not in self.matrices:
            raise DataError(f"speaker {speaker!r} has no transform; estimate one from a first-pass alignment")
        return self.front_end(features, self.normalisers[speaker], self.matrices[speaker])

    def save(self, path: Path) -> None:
        """Write as one safetensors file."""
        names = list(self.matrices)
        arrays = {
            "matrices": np.stack([self.matrices[name] for name in names]),
            "means": np.stack([self.normalisers[name].mean for name in names]),
            "scales": np.stack([self.normalisers[name].scale for name in names]),
        }
        front_end = self.front_end.describe()
        if self.front_end.projection is not None:
            arrays["projection"] = self.front_end.projection
        description = {"kind": "speaker transforms", "version": 1, "speakers": names, "front_end": front_end}
        write_tensors(path, arrays, description)

    @classmethod
    def load(cls, path: Path) -> SpeakerTransforms:
        """Read what ``save`` wrote."""
        arrays, description = read_tensors(path, "speaker transforms")
        names = description["speakers"]
        front_end = FrontEnd(**description["front_end"], projection=arrays.get("projection"))
        norms = zip(arrays["means"], arrays["scales"], strict=True)
        return cls(
            front_end,
            {name: Normaliser(mean, scale) for name, (mean, scale) in zip(names, norms, strict=True)},
            dict(zip(names, arrays["matrices"], strict=True)),
        )


def transform(features: Features, speakers: Speakers, transforms: SpeakerTransforms) -> Iterator[tuple[str, Array]]:
    """Yield names and adapted features (T, D), utterance by utterance, as input of a neural model."""
    for utterance, matrix in features.items():
        yield utterance, transforms(speakers[utterance], np.asarray(matrix))
