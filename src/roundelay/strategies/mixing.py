r"""Mixing matrices: the share of each neighbour's weights, on a topology.

A topology names, for a rank at an iteration, the ranks to send to and to receive from.  A mixing gives a share to each
of them: learner $l$ continues from $\sum_k T_{lk} w_k$.  Every $T$ here is doubly stochastic: mixing keeps the mean of
all weights.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.topologies import Edge, Topology
from roundelay.vectors.chunks import combine

Weighting = Literal["uniform", "metropolis"]


class MixingBase:
    """A share for each link of each rank, and the exchange that applies the shares."""

    def check(self, size: int) -> None:
        """Raise `SettingsError` if this does not fit ``size`` learners, or does not keep their mean."""
        raise NotImplementedError

    def shares(self, rank: int, size: int, iteration: int = 0) -> list[tuple[Edge, float]]:
        """Return the links of ``rank``, each with the share of the weights it brings; the rest is its own share."""
        raise NotImplementedError

    def matrix(self, size: int, iteration: int = 0) -> Tensor:
        """Return $T$ in float64; row $l$ has the shares of learner $l$."""
        raise NotImplementedError

    def mix(self, learner: Learner, iteration: int = 0) -> Awaitable[Tensor]:
        r"""Send our weights along all links; the await replaces them by $\sum_k T_{lk} w_k$.

        As with every operation, the exchanges start at once.  Our weights must not change before the await; if it
        raises, they have not changed.
        """
        comm, weights = learner.comm, learner.weights
        shares = self.shares(comm.rank, comm.size, iteration)
        return _Mixed(weights, [(share, comm.exchange(weights, *link)) for link, share in shares])


class _Mixed(Awaitable[Tensor]):
    """Our share of our own weights, plus those that arrive; a step that is undone leaves it unawaited."""

    def __init__(self, own: Tensor, arriving: Sequence[tuple[float, Awaitable[Tensor]]]) -> None:
        self._own, self._arriving = own, arriving

    def __await__(self) -> Generator[Any, Any, Tensor]:
        arrived = []
        for share, theirs in self._arriving:
            arrived.append((share, (yield from theirs.__await__())))
        if arrived:
            combine(self._own, 1.0 - sum(share for share, _ in arrived), arrived)
        return self._own


@dataclass(frozen=True)
class Mixing(MixingBase):
    r"""A topology with a share for each link.

    ``uniform`` gives the same share to all of a neighbourhood: $1/(d+1)$ with $d$ the degree, which must be equal at
    both ends of each link.  ``metropolis`` gives the link of $l$ and $k$ the share $1/(1+\max(d_l,d_k))$.  That is
    doubly stochastic on any undirected graph, and uniform if all degrees are equal.
    """

    topology: Topology
    weighting: Weighting = "uniform"

    def check(self, size: int) -> None:
        self.topology.check(size)
        for iteration in range(max(1, self.topology.cycle(size))):
            check_matrix(self.matrix(size, iteration), f"{self.weighting} shares on topology {self.topology.name!r}")

    def shares(self, rank: int, size: int, iteration: int = 0) -> list[tuple[Edge, float]]:
        links = self.topology.links(rank, size, iteration)
        if self.weighting == "uniform":
            return [(link, 1.0 / (len(links) + 1)) for link in links]
        degrees = [len(self.topology.links(link.source, size, iteration)) for link in links]
        return [(link, 1.0 / (1 + max(len(links), d))) for link, d in zip(links, degrees, strict=True)]

    def matrix(self, size: int, iteration: int = 0) -> Tensor:
        rows = [[0.0] * size for _ in range(size)]
        for rank, row in enumerate(rows):
            shares = self.shares(rank, size, iteration)
            for link, share in shares:
                row[link.source] += share
            row[rank] += 1.0 - sum(share for _, share in shares)
        return torch.tensor(rows, dtype=torch.float64)


@dataclass(frozen=True)
class MatrixMixing(MixingBase):
    """A mixing matrix that the user gives; it must be symmetric, as D-PSGD asks, and doubly stochastic."""

    rows: tuple[tuple[float, ...], ...]

    def check(self, size: int) -> None:
        wrong = next((k for k, row in enumerate(self.rows) if len(row) != len(self.rows)), None)
        if wrong is not None:
            length = len(self.rows[wrong])
            raise SettingsError(f"the mixing matrix has {len(self.rows)} rows, and row {wrong} has {length} entries")
        if len(self.rows) != size:
            raise SettingsError(f"the mixing matrix is for {len(self.rows)} learners, not {size}")
        matrix = self.matrix(size)
        check_matrix(matrix, "the mixing matrix")
        uneven = (matrix - matrix.T).abs() > 1e-9
        if uneven.any():
            a, b = uneven.nonzero()[0].tolist()
            one, other = f"({a}, {b}) is {self.rows[a][b]:g}", f"({b}, {a}) is {self.rows[b][a]:g}"
            raise SettingsError(f"the mixing matrix is not symmetric: {one}, {other}")

    def shares(self, rank: int, size: int, iteration: int = 0) -> list[tuple[Edge, float]]:
        return [(Edge(k, k), share) for k, share in enumerate(self.rows[rank]) if share and k != rank]

    def matrix(self, size: int, iteration: int = 0) -> Tensor:
        return torch.tensor(self.rows, dtype=torch.float64)


def check_matrix(matrix: Tensor | Sequence[Sequence[float]], what: str = "the mixing matrix") -> None:
    """Raise `SettingsError` if ``matrix`` is not doubly stochastic; name the row or column and its sum."""
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise SettingsError(f"{what} must be square, not {tuple(matrix.shape)}")
    if bool((matrix < 0).any()):
        row, column = (matrix < 0).nonzero()[0].tolist()
        raise SettingsError(f"{what}: entry ({row}, {column}) is {float(matrix[row, column]):g}, which is below 0")
    for kind, axis in (("row", 1), ("column", 0)):
        sums = matrix.sum(axis)
        off = int((sums - 1.0).abs().argmax())
        if not math.isclose(float(sums[off]), 1.0, abs_tol=1e-9):
            raise SettingsError(f"{what}: {kind} {off} sums to {float(sums[off]):g}, not 1")
