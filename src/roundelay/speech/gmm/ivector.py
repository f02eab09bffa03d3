"""Speaker vectors (i-vectors): a short vector that describes how a speaker differs from others.

A background mixture (UBM) of C Gaussians in D features; the means of speaker s are m + T w(s) with w of R numbers that
are standard normal a priori; the i-vector is the posterior mean of w.  (Dehak et al. 2011, "Front-end factor analysis
for speaker verification"; EM after Kenny et al. 2005, "Eigenvoice modeling with sparse training data".)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from roundelay.errors import DataError, SettingsError
from roundelay.speech.gmm.arrays import Array, product, read_tensors, write_tensors
from roundelay.speech.gmm.front_end import check_features
from roundelay.speech.gmm.gaussian_mixtures import Gmm, accumulate, update


def train_ubm(frames: Array, num_gaussians: int, *, iterations: int = 12, seed: int = 0) -> Gmm:
    """Train one mixture for all speech on a sample of frames (T, D); Gaussians are split until there are enough."""
    if len(frames) < 10 * num_gaussians:
        raise DataError(
            f"i-vectors: {len(frames)} frames are too few for {num_gaussians} Gaussians; ten each are needed"
        )
    rng = np.random.default_rng(seed)
    wide = frames.astype(np.float64)
    moments = np.concatenate([[len(wide)], wide.sum(0), (wide**2).sum(0)])
    floor = 0.01 * wide.var(axis=0)
    ubm = Gmm.single(moments[None], floor)
    senones = np.zeros(len(frames), np.int64)
    while True:
        wanted = min(2 * ubm.num_gaussians, num_gaussians)
        last = wanted == num_gaussians
        ubm = ubm.grow(wanted, np.array([float(len(frames))]), rng)
        for _ in range(iterations if last else 3):
            ubm = update(ubm, accumulate(ubm, frames, senones), floor)
        if last or ubm.num_gaussians < wanted:  # Gaussians without frames were dropped: more splits would not help
            return ubm


@dataclass(frozen=True, slots=True)
class BaumWelch:
    """Occupancies (C,) and sums of frames less the UBM's means (C, D) of a speaker or utterance; ``+`` adds them."""

    occupancy: Array
    sums: Array

    @classmethod
    def collect(cls, ubm: Gmm, frames: Array) -> BaumWelch:
        """Sum over frames (T, D)."""
        moments = accumulate(ubm, frames, np.zeros(len(frames), np.int64)).moments
        occupancy = moments[:, 0]
        return cls(occupancy, moments[:, 1 : 1 + ubm.num_features] - occupancy[:, None] * ubm.means)

    def __add__(self, other: BaumWelch) -> BaumWelch:
        return BaumWelch(self.occupancy + other.occupancy, self.sums + other.sums)


@dataclass(frozen=True)
class IvectorModel:
    """A background mixture and the directions (C, D, R) in which speakers differ.

    ``scale`` reduces the weight of the statistics, since neighbouring frames are not independent.
    """

    ubm: Gmm
    directions: Array
    scale: float = 0.1

    @property
    def size(self) -> int:
        """Return the length of the vectors."""
        return int(self.directions.shape[2])

    @cached_property
    def _scaled(self) -> Array:
        """Directions over variances, (C D, R)."""
        return (self.directions / self.ubm.variances[:, :, None]).reshape(-1, self.size)

    @cached_property
    def _precisions(self) -> Array:
        """Precision that one frame of each Gaussian adds to a vector, (C, R R)."""
        left = torch.from_numpy(self._scaled.reshape(self.directions.shape)).transpose(1, 2)
        return torch.bmm(left, torch.from_numpy(self.directions)).flatten(1).numpy()

    def posterior(self, statistics: BaumWelch) -> tuple[Array, Array]:
        """Return mean (R,) and covariance (R, R) of a speaker's vector."""
        added = product(self.scale * statistics.occupancy[None], self._precisions, np.float64)
        covariance = np.linalg.inv(np.eye(self.size) + added.reshape(self.size, self.size))
        pull = product(self.scale * statistics.sums.reshape(1, -1), self._scaled, np.float64)
        return covariance @ pull[0], covariance

    def save(self, path: Path) -> None:
        """Write as one safetensors file."""
        arrays = {**self.ubm.arrays(), "directions": self.directions}
        write_tensors(path, arrays, {"kind": "i-vector model", "version": 1, "scale": self.scale})

    @classmethod
    def load(cls, path: Path) -> IvectorModel:
        """Read what ``save`` wrote."""
        arrays, description = read_tensors(path, "i-vector model")
        directions = arrays.pop("directions")
        return cls(Gmm(**arrays), directions, float(description["scale"]))


def train_ivectors(
    ubm: Gmm, statistics: Iterable[BaumWelch], size: int, *, iterations: int = 8, scale: float = 0.1, seed: int = 0
) -> IvectorModel:
    """Find by EM the directions in which speakers (or utterances) differ, from the statistics of each."""
    rows = list(statistics)
    if not 1 <= size <= ubm.means.size:
        raise SettingsError(f"ivector.size must be from 1 to {ubm.means.size}, not {size}")
    if len(rows) < 2:
        raise DataError(f"i-vectors: {len(rows)} speakers are too few; use at least 2")
    rng = np.random.default_rng(seed)
    start = 0.1 * np.sqrt(ubm.variances)[:, :, None] * rng.standard_normal((*ubm.means.shape, size))
    model = IvectorModel(ubm, start, scale)
    for _ in range(iterations):
        model = _step(model, rows)
    return model


def _step(model: IvectorModel, rows: list[BaumWelch]) -> IvectorModel:
    """Re-estimate the directions, and transform them so that vectors have unit second moment, as in the prior."""
    size = model.size
    products = np.zeros((len(model.ubm.weights), size, size))
    cross = np.zeros_like(model.directions)
    second = np.zeros((size, size))
    for row in rows:
        mean, covariance = model.posterior(row)
        moment = covariance + np.outer(mean, mean)
        products += row.occupancy[:, None, None] * moment
        cross += row.sums[:, :, None] * mean
        second += moment / len(rows)
    ridge = 1e-8 * (1.0 + products.trace(axis1=1, axis2=2))
    products += ridge[:, None, None] * np.eye(size)
    solved = torch.linalg.solve(torch.from_numpy(products), torch.from_numpy(cross).transpose(1, 2)).transpose(1, 2)
    turn = torch.from_numpy(np.linalg.cholesky(second))
    return IvectorModel(model.ubm, (solved @ turn).contiguous().numpy(), model.scale)


def speaker_vectors(
    model: IvectorModel, utterances: Iterable[tuple[str, Array]], speakers: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Array]]:
    """Yield a vector for each speaker, from (utterance, frames) pairs; without speakers, for each utterance."""
    sums: dict[str, BaumWelch] = {}
    for utterance, frames in utterances:
        check_features(utterance, frames)
        found = BaumWelch.collect(model.ubm, frames)
        if speakers is None:
            yield utterance, model.posterior(found)[0].astype(np.float32)
            continue
        name = speakers[utterance]
        sums[name] = sums[name] + found if name in sums else found
    for name, found in sums.items():
        yield name, model.posterior(found)[0].astype(np.float32)
