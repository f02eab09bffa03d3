r"""Kaldi's online Fisher estimate in float64, by its definition: full matrices instead of the factors that we store.

The algorithm is that of ``OnlineNaturalGradient`` in Kaldi's nnet3 (natural-gradient-online.cc), with every number in
double precision.  With $F = R^T D R + \rho I$ and the minibatch's second moment $S = X^T X / N$ one update is

$T = \eta S + (1-\eta) F$,  $Y = R\,T$,  $Y Y^T = U C U^T$,  $R' = C^{-1/2} U^T Y$,  $D' = C^{1/2} - \rho'$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass
class KaldiFisher:
    """The estimate after ``t`` minibatches; ``t`` is 0 before the first."""

    rank: int
    update_period: int = 1
    num_samples_history: float = 2000.0
    alpha: float = 4.0
    epsilon: float = 1e-10
    delta: float = 5e-4
    t: int = 0
    r: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    d: Matrix = field(default_factory=lambda: np.zeros(0))
    rho: float = 0.0

    def precondition(self, x: Matrix) -> Matrix:
        """Return the preconditioned rows, of the same Frobenius norm as ``x``."""
        if x.shape[1] == 1:
            return x
        if self.t == 0:
            self.start(x)
        dim = x.shape[1]
        trace = dim * self.rho + self.d.sum()
        smoothed = self.matrix() + self.alpha / dim * trace * np.eye(dim)
        hat = x @ np.linalg.inv(smoothed)
        if self.t <= 10 or (self.t - 10) % self.update_period == 0:
            self.update(x)
        self.t += 1
        square = float((x * x).sum())
        return hat * math.sqrt(square / float((hat * hat).sum())) if square > 0.0 else hat

    def matrix(self) -> Matrix:
        """Return F."""
        made: Matrix = (self.r.T * self.d) @ self.r + self.rho * np.eye(self.r.shape[1])
        return made

    def start(self, x: Matrix) -> None:
        """Begin with a sparse matrix, and pass over the first minibatch once or three times."""
        rows, dim = x.shape
        self.rank = min(self.rank, dim - 1)
        self.r = np.zeros((self.rank, dim))
        for row in range(self.rank):
            self.r[row, row :: self.rank] = 1.0
            self.r[row, row] = 1.1
            self.r[row] /= np.linalg.norm(self.r[row])
        self.d, self.rho = np.full(self.rank, self.epsilon), self.epsilon
        for _ in range(1 if rows <= self.rank else 3):
            self.update(x)

    def update(self, x: Matrix) -> None:
        """Move F towards the second moment of ``x``."""
        rows, dim = x.shape
        eta = min(0.9, 1.0 - math.exp(-rows / self.num_samples_history))
        target = eta * (x.T @ x) / rows + (1.0 - eta) * self.matrix()
        y = self.r @ target
        z = y @ y.T
        c, u = np.linalg.eigh((z + z.T) / 2)
        order = np.argsort(-np.abs(c))
        c, u = c[order], u[:, order]
        floor = ((1.0 - eta) * self.rho) ** 2
        orthogonal = not (c[0] > 1e6 * c[-1] or (c < floor).any())
        root = np.sqrt(np.maximum(c, floor))
        rho = float(np.trace(target) - root.sum()) / (dim - self.rank)
        lowest = max(self.epsilon, self.delta * float(root.max()))
        self.d = np.maximum(root - rho, lowest)  # with the rho that is not yet raised
        self.rho = max(rho, lowest)
        self.r = (u.T @ y) / root[:, None]
        if not orthogonal:
            self.orthogonalize()

    def orthogonalize(self) -> None:
        """Make the rows of R orthonormal, by Cholesky's factor or, where that is unsafe, by Gram and Schmidt."""
        gram = self.r @ self.r.T
        if np.abs(gram - np.eye(self.rank)).max() <= 1e-3:
            return
        try:
            inverse = np.linalg.inv(np.linalg.cholesky(gram))
        except np.linalg.LinAlgError:
            inverse = np.full((1, 1), np.inf)
        if inverse.max() < 100.0:
            self.r = inverse @ self.r
            return
        for row in range(self.rank):
            for _ in range(100):
                before = self.r[row] @ self.r[row]
                for former in range(row):
                    self.r[row] -= (self.r[row] @ self.r[former]) * self.r[former]
                after = self.r[row] @ self.r[row]
                if after > 0.01 * before:
                    break
            self.r[row] /= math.sqrt(after)
