"""Speaker vectors (i-vectors): where a speaker lies in the space of all, as a short vector.

A background mixture (UBM) of C Gaussians in D features; the means of speaker s are m + T w(s) with w of R numbers that
are standard normal a priori; the i-vector is the posterior mean of w.  (Dehak et al. 2011, "Front-end factor analysis
for speaker verification"; EM after Kenny et al. 2005, "Eigenvoice modeling with sparse training data".)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roundelay.errors import DataError, SettingsError
from roundelay.speech.frontend import check_features
from roundelay.speech.gmm import Gmm, accumulate, update
from roundelay.speech.tensors import Array, read_tensors, write_tensors


def train_ubm(frames: Array, num_gaussians: int, *, iterations: int = 12, seed: int = 0) -> Gmm:
    """Train one mixture for all speech on a sample of frames (T, D), splitting it until it is large enough."""
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
        if last or ubm.num_gaussians < wanted:  # Gaussians without frames were dropped: more would be too
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

    ``scale`` weighs the statistics down, since neighbouring frames are far from independent.
    """

    ubm: Gmm
    directions: Array
    scale: float = 0.1

    @property
    def size(self) -> int:
        """Give the length of the vectors."""
        return int(self.directions.shape[2])

    def posterior(self, statistics: BaumWelch) -> tuple[Array, Array]:
        """Give mean (R,) and covariance (R, R) of a speaker's vector."""
        scaled = self.directions / self.ubm.variances[:, :, None]
        weights = np.repeat(self.scale * statistics.occupancy, self.ubm.num_features)
        flat = self.directions.reshape(-1, self.size)
        precision = np.eye(self.size) + flat.T @ (scaled.reshape(-1, self.size) * weights[:, None])
        covariance = np.linalg.inv(precision)
        return covariance @ np.einsum("cdr,cd->r", scaled, self.scale * statistics.sums), covariance

    def extract(self, frames: Array) -> Array:
        """Give the vector (R,) of frames (T, D)."""
        return self.posterior(BaumWelch.collect(self.ubm, frames))[0].astype(np.float32)

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


def log_evidence(model: IvectorModel, statistics: BaumWelch) -> float:
    """Give the log-probability of statistics with the vector integrated out, up to a constant; EM raises its sum."""
    mean, covariance = model.posterior(statistics)
    pull = np.linalg.solve(covariance, mean)
    return float(0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * pull @ mean)


def train_ivectors(
    ubm: Gmm, statistics: Iterable[BaumWelch], size: int, *, iterations: int = 8, scale: float = 0.1, seed: int = 0
) -> IvectorModel:
    """Find by EM the directions in which speakers (or utterances) differ, from the statistics of each."""
    rows = list(statistics)
    if not 1 <= size <= ubm.means.size:
        raise SettingsError(f"ivector.size must be from 1 to {ubm.means.size}, not {size}")
    if len(rows) < 2:
        raise DataError(f"i-vectors: statistics of {len(rows)} speakers do not tell how speakers differ")
    rng = np.random.default_rng(seed)
    start = 0.1 * np.sqrt(ubm.variances)[:, :, None] * rng.standard_normal((*ubm.means.shape, size))
    model = IvectorModel(ubm, start, scale)
    for _ in range(iterations):
        model = _step(model, rows)
    return model


def _step(model: IvectorModel, rows: list[BaumWelch]) -> IvectorModel:
    """Re-estimate the directions, and turn them so that vectors have unit second moment, as the prior says."""
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
    directions = np.linalg.solve(products, cross.transpose(0, 2, 1)).transpose(0, 2, 1)
    return IvectorModel(model.ubm, directions @ np.linalg.cholesky(second), model.scale)


def speaker_vectors(
    model: IvectorModel, utterances: Iterable[tuple[str, Array]], speakers: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Array]]:
    """Give a vector for each speaker, from (utterance, frames) pairs; without speakers, for each utterance."""
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
