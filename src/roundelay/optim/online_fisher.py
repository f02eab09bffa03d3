"""The online low-rank estimate of a Fisher matrix, the preconditioner of natural-gradient SGD."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

INITIAL_UPDATES = 11  # on every minibatch, before the update period counts
INITIAL_PASSES = 3  # over the first minibatch, instead of an eigenvalue decomposition
FIRST_ELEMENT = 1.1  # of each row at the start: with 1, the rows would add up to a vector of ones
LARGEST_ETA = 0.9  # share of one minibatch in the estimate: at 1, rows of zeros would leave nothing of it
LARGEST_CONDITION = 1e6  # of Z, beyond which the rows of R may have lost their orthogonality
ORTHOGONAL = 1e-3  # largest deviation of R R^T from the identity that is accepted
LARGEST_INVERSE = 100.0  # element of the inverse of Cholesky's factor; beyond it the factor is not to be trusted
NEARLY_NOTHING = 0.01  # share of a row's square that is left by Gram and Schmidt, at which rounding errors dominate


@dataclass(frozen=True)
class FisherSettings:
    """Kaldi's constants, by Kaldi's names."""

    rank: int = 40
    update_period: int = 1
    """Minibatches between two updates, after the first eleven."""
    num_samples_history: float = 2000.0
    """Number of rows after which the weight of older rows has fallen by a factor of e."""
    alpha: float = 4.0
    """Multiple of the mean eigenvalue that is added to each eigenvalue; a very large one is plain SGD."""
    epsilon: float = 1e-10
    delta: float = 5e-4
    """Both $\\rho$ and each of $D$ are at least this fraction of the largest eigenvalue."""


class OnlineFisher:
    r"""The matrix $F = R^T D R + \rho I$ of the rows $x$ so far, and the multiplication by its inverse.

    $R$ has ``rank`` orthonormal rows, $D$ is diagonal.  Stored is $W = E^{1/2} R$ with
    $e_i = 1 / (\beta/d_i + 1)$ and $\beta = \rho (1 + \alpha) + \frac{\alpha}{\dim} \sum d$, since
    $\beta (F + \frac{\alpha}{\dim} tr(F) I)^{-1} = I - W^T W$.

    Povey, Zhang & Khudanpur, 2015 (arXiv 1410.7455, appendix), as Kaldi's nnet3 computes it.  Departures: we take the
    eigenvalues in double precision throughout, and leave out rows that are not finite.
    """

    def __init__(self, settings: FisherSettings) -> None:
        self.settings = settings
        self.w = torch.zeros(0, 0)  # (R, dim)
        self.d = torch.zeros(0, dtype=torch.float64)  # (R)
        self.rho = 0.0
        self.updates = -1  # number of updates; -1: there is no estimate yet
        self.skipped = 0  # minibatches since the last update

    @property
    def started(self) -> bool:
        """Whether there is an estimate."""
        return self.updates >= 0

    @torch.no_grad()
    def precondition(self, x: Tensor) -> tuple[Tensor, float]:
        """Return the rows times the inverse matrix, up to a scale, and the factor that restores the norm of ``x``.

        The rows update the estimate afterwards.  A single column, and rows that are not finite, are returned unchanged.
        """
        square = float(torch.linalg.vector_norm(x)) ** 2
        if x.shape[1] == 1 or not math.isfinite(square):
            return x, 1.0
        if not self.started:
            self._start(x, square)
        self.w = self.w.to(x.device)  # a checkpoint's is on the CPU
        h = x @ self.w.T
        hat = torch.addmm(x, h, self.w, alpha=-1.0)
        if self.updates < INITIAL_UPDATES or self.skipped >= self.settings.update_period - 1:
            self._update(x, h, square)
        else:
            self.skipped += 1
        left = float(torch.linalg.vector_norm(hat)) ** 2
        return hat, math.sqrt(square / left) if left > 0.0 else 1.0

    def directions(self) -> Tensor:
        """Return R, in double precision."""
        return self.w.cpu().double() * self._evenness(self.d, self.rho).rsqrt()[:, None]

    # -- the estimate -------------------------------------------------------------------------------------------

    def _start(self, x: Tensor, square: float) -> None:
        """Begin with an arbitrary matrix, and update it with the first minibatch."""
        rows, dim = x.shape
        rank = min(self.settings.rank, dim - 1)
        columns = torch.arange(dim, device=x.device)
        r = x.new_zeros(rank, dim)
        r[columns % rank, columns] = 1.0  # each column is in exactly one row
        r.diagonal().fill_(FIRST_ELEMENT)
        r /= torch.linalg.vector_norm(r, dim=1, keepdim=True)
        self.rho = self.settings.epsilon
        self.d = torch.full((rank,), self.settings.epsilon, dtype=torch.float64)
        self.w = r
        self.w = r * self._evenness(self.d, self.rho).sqrt()[:, None].to(r)
        for _ in range(INITIAL_PASSES if rows > rank else 1):  # one pass finds all directions of so few rows
            self._update(x, x @ self.w.T, square)
        self.updates = 0

    def _evenness(self, d: Tensor, rho: float) -> Tensor:
        """Return the diagonal of E."""
        alpha = self.settings.alpha
        beta = rho * (1.0 + alpha) + alpha * float(d.sum()) / self.w.shape[1]
        return 1.0 / (beta / d + 1.0)

    def _update(self, x: Tensor, h: Tensor, square: float) -> None:
        """Move the estimate towards the second moments of the rows, in the subspace of both."""
        settings, (rank, dim) = self.settings, self.w.shape
        rows = x.shape[0]
        eta = min(LARGEST_ETA, -math.expm1(-rows / settings.num_samples_history))
        keep, share = 1.0 - eta, eta / rows
        j = h.T @ x  # (R, dim)
        inverse = self._evenness(self.d, self.rho).rsqrt()  # of the root of E
        full = self.d + self.rho
        c, u = _eigen(self._z(j, h, inverse, keep, share))
        floor = (keep * self.rho) ** 2
        ill_conditioned = bool(c[0] > LARGEST_CONDITION * c[-1]) or bool(c[-1] < floor)
        root = c.clamp(min=floor).sqrt()
        rho = (share * square + keep * (dim * self.rho + float(self.d.sum())) - float(root.sum())) / (dim - rank)
        lowest = max(settings.epsilon, settings.delta * float(root[0]))
        d, rho = (root - rho).clamp(min=lowest), max(rho, lowest)
        a = (share * self._evenness(d, rho).sqrt() / root)[:, None] * u.T * inverse
        b = j + (keep / share * full)[:, None].to(j) * self.w
        self.w, self.d, self.rho = a.to(j) @ b, d, rho
        if ill_conditioned:
            self._orthonormalise()
        self.updates, self.skipped = self.updates + 1, 0

    def _z(self, j: Tensor, h: Tensor, inverse: Tensor, keep: float, share: float) -> Tensor:
        """Return Z = U C U^T, the fourth power of the data: hence double precision."""
        j, h, full = j.cpu().double(), h.cpu().double(), self.d + self.rho
        k = inverse[:, None] * (j @ j.T) * inverse
        middle = inverse[:, None] * (h.T @ h) * inverse
        z = share**2 * k + share * keep * (middle * full + full[:, None] * middle)
        z.diagonal().add_(keep**2 * full.square())
        return (z + z.T) / 2

    def _orthonormalise(self) -> None:
        """Make the rows of R orthonormal again."""
        r = self.directions()
        gram = r @ r.T
        if float((gram - torch.eye(len(gram), dtype=gram.dtype)).abs().max()) <= ORTHOGONAL:
            return
        factor, failed = torch.linalg.cholesky_ex(gram)
        inverse = torch.linalg.solve_triangular(factor, torch.eye(len(gram), dtype=gram.dtype), upper=False)
        if not int(failed) and float(inverse.max()) < LARGEST_INVERSE:
            r = inverse @ r
        else:
            gram_schmidt_(r)
        self.w = (self._evenness(self.d, self.rho).sqrt()[:, None] * r).to(self.w)

    # -- for checkpoints ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return all state; it is empty before the first minibatch."""
        if not self.started:
            return {}
        counts = torch.tensor([self.updates, self.skipped])
        return {"w": self.w, "d": self.d, "rho": torch.tensor(self.rho, dtype=torch.float64), "counts": counts}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        if not state:
            self.updates = -1
            return
        self.w, self.d, self.rho = state["w"].clone(), state["d"].clone(), float(state["rho"])
        self.updates, self.skipped = (int(count) for count in state["counts"])


def _eigen(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, the largest first, and their vectors in columns."""
    values, vectors = torch.linalg.eigh(z)
    return values.flip(0), vectors.flip(1)


def gram_schmidt_(rows: Tensor) -> None:
    """Make the rows orthonormal in place, each by the rows before it; a row in their span gets another direction."""
    for index, row in enumerate(rows):
        axes = iter(torch.eye(rows.shape[1], dtype=rows.dtype))
        while True:
            before = float(row @ row)
            for former in rows[:index]:
                row.sub_(former, alpha=float(row @ former))
            after = float(row @ row)
            if after > NEARLY_NOTHING * before:
                break
            if after == 0.0:
                row.copy_(next(axes))
        row.div_(math.sqrt(after))
