"""Diagonal Gaussian mixtures, one per senone: scores, statistics, estimation, growth.

G Gaussians, D features, T frames.  The Gaussians of a senone lie together, in the order of senones.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
import torch

from roundelay.speech.gmm.arrays import Array, tensor

MIN_OCCUPANCY = 8.0  # frames; a Gaussian with fewer is dropped, unless it is its senone's last
WEIGHT_FLOOR = 1e-5


class Gmm:
    """Mixtures of all senones: ``counts`` Gaussians each, with weights (G,), means and variances (G, D)."""

    def __init__(self, counts: Array, weights: Array, means: Array, variances: Array) -> None:
        self.counts, self.weights = counts.astype(np.int64), weights.astype(np.float64)
        self.means, self.variances = means.astype(np.float64), variances.astype(np.float64)
        self.first = np.concatenate([[0], np.cumsum(self.counts)])  # senone s owns first[s] to first[s + 1]
        self._rows: torch.Tensor | None = None

    @property
    def num_senones(self) -> int:
        """Count the mixtures."""
        return len(self.counts)

    @property
    def num_gaussians(self) -> int:
        """Count the Gaussians of all mixtures."""
        return len(self.weights)

    @property
    def num_features(self) -> int:
        """Return the dimension of the frames."""
        return int(self.means.shape[1])

    @classmethod
    def single(cls, moments: Array, floor: Array) -> Gmm:
        """Fit one Gaussian per senone to moments (num_senones, 1 + 2D); without frames, that of all frames."""
        num_features = (moments.shape[1] - 1) // 2
        seen = moments[:, :1] > MIN_OCCUPANCY
        moments = np.where(seen, moments, moments.sum(0) + 1e-10)
        means = moments[:, 1 : 1 + num_features] / moments[:, :1]
        variances = moments[:, 1 + num_features :] / moments[:, :1] - means**2
        ones = np.ones(len(moments))
        return cls(ones, ones, means, np.maximum(variances, floor))

    def rows(self) -> torch.Tensor:
        """Return each Gaussian as a linear function of (1, x, x²): (G + 1, 1 + 2D); the last is a dummy near log 0."""
        if self._rows is None:
            constant = np.log(np.maximum(self.weights, WEIGHT_FLOOR)) - 0.5 * (
                np.log(2 * math.pi * self.variances) + self.means**2 / self.variances
            ).sum(1)
            table = np.concatenate([constant[:, None], self.means / self.variances, -0.5 / self.variances], axis=1)
            dummy = np.zeros((1, table.shape[1]))
            dummy[0, 0] = -1e30
            self._rows = torch.from_numpy(np.concatenate([table, dummy]).astype(np.float32))
        return self._rows

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that make the model, for a file."""
        return {"counts": self.counts, "weights": self.weights, "means": self.means, "variances": self.variances}

    def __getstate__(self) -> tuple[Array, Array, Array, Array]:
        return self.counts, self.weights, self.means, self.variances

    def __setstate__(self, state: tuple[Array, Array, Array, Array]) -> None:
        self.__init__(*state)  # type: ignore[misc]  # derived values are computed again

    def score(self, frames: Array, senones: Array) -> Array:
        """Return the log-likelihoods of frames (T, D) under the given senones: (len(senones), T)."""
        columns = expand(frames).T
        scores = torch.empty(len(senones), len(frames))
        counts = self.counts[senones]
        # Senones are grouped by their number of Gaussians (up to a factor of two), so that there is little padding.
        sizes = np.ceil(np.log2(counts)).astype(int)
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size)
            scores[torch.from_numpy(rows)] = self._score(columns, senones[rows], int(counts[rows].max()))
        return scores.numpy()

    def _score(self, columns: torch.Tensor, senones: Array, width: int) -> torch.Tensor:
        slots = np.arange(width)
        own = slots < self.counts[senones][:, None]
        table = np.where(own, self.first[senones][:, None] + slots, self.num_gaussians)
        values = (self.rows()[torch.from_numpy(table.ravel())] @ columns).view(len(senones), width, -1)
        if width == 1:
            return values[:, 0]
        top = values.amax(1, keepdim=True)
        # Below -80 a Gaussian adds nothing, but the exponential would give denormal numbers, which are slow.
        values.sub_(top).clamp_(min=-80.0)
        return values.exp_().sum(1).log_().add_(top[:, 0])

    def posteriors(self, senone: int, expanded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the shares of a senone's Gaussians in expanded frames, (T, M), and the log-likelihoods (T,)."""
        values = expanded @ self.rows()[int(self.first[senone]) : int(self.first[senone + 1])].T
        total = torch.logsumexp(values, dim=1)
        return (values - total[:, None]).exp_(), total

    def grow(self, num_gaussians: int, occupancy: Array, rng: np.random.Generator) -> Gmm:
        """Split the heaviest Gaussians until there are ``num_gaussians``.

        A senone's share is its occupancy to the power 0.45: more data give more Gaussians, but less than in proportion.
        (The usual 0.2 gives silence too few Gaussians, and models of speech then match silence.)
        """
        wanted = _share(self.counts, num_gaussians, occupancy**0.45)
        pieces = [self._split(senone, int(number), rng) for senone, number in enumerate(wanted)]
        weights, means, variances = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return Gmm(wanted, weights, means, variances)

    def _split(self, senone: int, wanted: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        own = slice(self.first[senone], self.first[senone + 1])
        weights, means, variances = list(self.weights[own]), list(self.means[own]), list(self.variances[own])
        while len(weights) < wanted:
            heavy = int(np.argmax(weights))
            shift = 0.1 * np.sqrt(variances[heavy]) * rng.standard_normal(self.num_features)
            weights[heavy] /= 2
            weights.append(weights[heavy])
            means.append(means[heavy] + shift)
            means[heavy] = means[heavy] - shift
            variances.append(variances[heavy])
        return np.array(weights), np.array(means), np.array(variances)


def expand(frames: Array) -> torch.Tensor:
    """Return frames (T, D) as rows (1, x, x²), in which a Gaussian's log-density is linear: (T, 1 + 2D)."""
    x = tensor(frames)
    return torch.cat([torch.ones(len(x), 1), x, x * x], dim=1)


def _share(counts: Array, total: int, weight: Array) -> Array:
    """Distribute Gaussians one by one, each to the senone with the most weight per Gaussian."""
    wanted = counts.copy()
    heap = [(-weight[s] / wanted[s], s) for s in range(len(counts)) if weight[s] > 0]
    heapq.heapify(heap)
    for _ in range(total - int(counts.sum()) if heap else 0):
        s = heap[0][1]
        wanted[s] += 1
        heapq.heapreplace(heap, (-weight[s] / wanted[s], s))
    return wanted


@dataclass(slots=True)
class Statistics:
    """Sums over frames of an iteration of training; ``+=`` adds others."""

    moments: Array  # (G, 1 + 2D): occupancy, sums, sums of squares
    moves: Array  # (num_senones, 2): times stayed and left
    log_likelihood: float = 0.0
    frames: int = 0

    @classmethod
    def empty(cls, gmm: Gmm) -> Statistics:
        """Start at zero for this model."""
        return cls(np.zeros((gmm.num_gaussians, 1 + 2 * gmm.num_features)), np.zeros((gmm.num_senones, 2)))

    def __iadd__(self, other: Statistics) -> Statistics:
        self.moments += other.moments
        self.moves += other.moves
        self.log_likelihood += other.log_likelihood
        self.frames += other.frames
        return self

    def occupancy(self, gmm: Gmm) -> Array:
        """Sum the frames of each senone."""
        return np.add.reduceat(self.moments[:, 0], gmm.first[:-1])


def accumulate(gmm: Gmm, frames: Array, senones: Array, *, moments_of: Array | None = None) -> Statistics:
    """Sum statistics of aligned frames (T, D); moments are of ``moments_of`` if given: other features of these frames.

    With ``moments_of``, a model in one feature space is estimated from posteriors in another.
    """
    statistics = Statistics.empty(gmm)
    order = np.argsort(senones, kind="stable")
    expanded = expand(frames[order])
    target = expanded if moments_of is None else expand(moments_of[order])
    bounds = np.searchsorted(senones[order], np.arange(gmm.num_senones + 1))
    for senone in np.unique(senones):
        own = slice(int(bounds[senone]), int(bounds[senone + 1]))
        shares, total = gmm.posteriors(int(senone), expanded[own])
        rows = slice(gmm.first[senone], gmm.first[senone + 1])
        statistics.moments[rows] += (shares.T @ target[own]).numpy()
        statistics.log_likelihood += float(total.sum(dtype=torch.float64))
    statistics.frames = len(frames)
    return statistics


def update(gmm: Gmm, statistics: Statistics, floor: Array) -> Gmm:
    """Re-estimate by maximum likelihood; drop Gaussians with few frames, keep senones without frames unchanged."""
    occupancy = statistics.moments[:, 0]
    keep = occupancy >= MIN_OCCUPANCY
    senone_of = np.repeat(np.arange(gmm.num_senones), gmm.counts)
    for senone in np.flatnonzero(np.bincount(senone_of[keep], minlength=gmm.num_senones) == 0):
        own = np.arange(gmm.first[senone], gmm.first[senone + 1])
        keep[own[occupancy[own].argmax()]] = True
    moments, senone_of = statistics.moments[keep], senone_of[keep]
    num_features = gmm.num_features
    count = np.maximum(moments[:, :1], 1e-10)
    means = moments[:, 1 : 1 + num_features] / count
    variances = np.maximum(moments[:, 1 + num_features :] / count - means**2, floor)
    scarce = moments[:, 0] < MIN_OCCUPANCY
    means[scarce], variances[scarce] = gmm.means[keep][scarce], gmm.variances[keep][scarce]
    totals = np.bincount(senone_of, weights=np.maximum(moments[:, 0], 1e-10), minlength=gmm.num_senones)
    weights = np.maximum(moments[:, 0], 1e-10) / totals[senone_of]
    return Gmm(np.bincount(senone_of, minlength=gmm.num_senones), weights, means, variances)
