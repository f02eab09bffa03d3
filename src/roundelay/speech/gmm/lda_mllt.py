"""Linear transforms of features for all speakers: LDA, then MLLT.

E spliced features, D features kept, C classes (senones), G Gaussians, T frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roundelay.errors import DataError
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.gaussian_mixtures import Gmm, expand


@dataclass(slots=True)
class Scatter:
    """First moments of each class and the second moment of all frames; ``+=`` adds others."""

    counts: Array  # (C,)
    sums: Array  # (C, E)
    squares: Array  # (E, E)

    @classmethod
    def collect(cls, frames: Array, classes: Array, num_classes: int) -> Scatter:
        """Sum over frames (T, E) with their classes (T,)."""
        x = torch.from_numpy(np.ascontiguousarray(frames, dtype=np.float64))
        sums = torch.zeros(num_classes, x.shape[1], dtype=torch.float64)
        sums.index_add_(0, torch.from_numpy(classes.astype(np.int64)), x)
        counts = np.bincount(classes, minlength=num_classes).astype(np.float64)
        return cls(counts, sums.numpy(), (x.T @ x).numpy())

    def __iadd__(self, other: Scatter) -> Scatter:
        self.counts += other.counts
        self.sums += other.sums
        self.squares += other.squares
        return self

    def covariances(self) -> tuple[Array, Array]:
        """Return the covariance within classes and that between their means, (E, E) each."""
        total = self.counts.sum()
        mean = self.sums.sum(0) / total
        seen = self.counts > 0
        means = self.sums[seen] / self.counts[seen, None]
        second = (means * self.counts[seen, None]).T @ means / total
        return self.squares / total - second, second - np.outer(mean, mean)


def estimate_lda(scatter: Scatter, num_kept: int) -> Array:
    """Find the projection (D, E) that separates classes best: B v = λ W v for the largest λ.

    Rows are scaled so that the covariance within classes becomes the identity.
    """
    within, between = scatter.covariances()
    if num_kept > len(within):
        raise DataError(f"LDA: {num_kept} features cannot be kept of {len(within)}")
    ridge = 1e-10 * np.trace(within) / len(within)
    whiten = np.linalg.inv(np.linalg.cholesky(within + ridge * np.eye(len(within))))
    _, vectors = np.linalg.eigh(whiten @ between @ whiten.T)
    rows: Array = vectors.T[::-1][:num_kept] @ whiten
    # The sign of an eigenvector is arbitrary; the largest entry is made positive, so that runs are equal.
    largest = np.abs(rows).argmax(axis=1)
    signs: Array = np.sign(rows[np.arange(num_kept), largest])
    turned: Array = rows * signs[:, None]
    return turned


@dataclass(slots=True)
class MlltStatistics:
    """For each feature d, the sum over Gaussians of their scatter over the variance of d: (D, D, D)."""

    scatter: Array
    frames: float

    def __iadd__(self, other: MlltStatistics) -> MlltStatistics:
        self.scatter += other.scatter
        self.frames += other.frames
        return self


def collect_mllt(gmm: Gmm, frames: Array, senones: Array) -> MlltStatistics:
    """Sum the statistics of aligned frames (T, D)."""
    num = gmm.num_features
    scatter = torch.zeros(num, num * num, dtype=torch.float64)
    order = np.argsort(senones, kind="stable")
    expanded = expand(frames[order])
    bounds = np.searchsorted(senones[order], np.arange(gmm.num_senones + 1))
    for senone in np.unique(senones):
        own = slice(int(bounds[senone]), int(bounds[senone + 1]))
        shares, _ = gmm.posteriors(int(senone), expanded[own])
        gaussians = slice(int(gmm.first[senone]), int(gmm.first[senone + 1]))
        means = torch.from_numpy(gmm.means[gaussians]).float()
        centred = expanded[own][:, 1 : 1 + num] - means[:, None]  # (M, t, D)
        weighted = centred * shares.T[:, :, None]
        per_gaussian = torch.bmm(weighted.transpose(1, 2), centred).double()
        inverse = torch.from_numpy(1.0 / gmm.variances[gaussians])
        scatter += inverse.T @ per_gaussian.flatten(1)
    return MlltStatistics(scatter.view(num, num, num).numpy(), float(len(frames)))


def estimate_mllt(statistics: MlltStatistics, iterations: int = 20) -> Array:
    """Find the square transform A that makes diagonal covariances fit best (semi-tied covariances).

    Maximises  N log|det A| - 1/2 sum_d a_d G_d a_d'  row by row: a_d = c_d G_d^-1 sqrt(N / c_d G_d^-1 c_d'), where c_d
    is row d of the cofactors.  (Gales 1999, "Semi-tied covariance matrices for hidden Markov models", eq. 26.)
    """
    inverse = np.linalg.inv(statistics.scatter)
    num = len(inverse)
    a = np.eye(num)
    for _ in range(iterations):
        for d in range(num):
            # Column d of the inverse is the row of cofactors up to the determinant, which cancels.
            cofactors = np.linalg.inv(a)[:, d]
            row = inverse[d] @ cofactors
            a[d] = row * np.sqrt(statistics.frames / (cofactors @ row))
    return a
