r"""Mixing matrices: how much of whose weights, on a topology, which says who talks to whom.

A topology names, for a rank at an iteration, whom to send to and whom to receive from.  A mixing gives each of these a
share: learner $l$ goes on from $\sum_k T_{lk} w_k$.  Every $T$ here is doubly stochastic, so mixing keeps the mean of
all weights, whatever it does to the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.strategies.topologies import Edge, Topology

__all__ = ["MatrixMixing", "Mixing", "check_matrix", "contraction"]

Weighting = Literal["uniform", "metropolis"]


@dataclass(frozen=True)
class Mixing:
    r"""A topology with a share for each link.

    ``uniform`` gives everyone in a neighbourhood the same, $1/(d+1)$ with $d$ the degree, which must be equal along
    each link.  ``metropolis`` gives the link of $l$ and $k$ the share $1/(1+\max(d_l,d_k))$, which is doubly
    stochastic on any undirected graph, and uniform where all degrees are equal.
    """

    topology: Topology
    weighting: Weighting = "uniform"

    def check(self, size: int) -> None:
        """Raise `SettingsError` where this does not fit ``size`` learners, or would not keep their mean."""
        self.topology.check(size)
        for iteration in range(max(1, self.topology.cycle(size))):
            check_matrix(self.matrix(size, iteration), f"{self.weighting} shares on topology {self.topology.name!r}")

    def shares(self, rank: int, size: int, iteration: int = 0) -> list[tuple[Edge, float]]:
        """Return the links of ``rank`` with the share of what comes in by each; its own share is the rest."""
        links = self.topology.links(rank, size, iteration)
        if self.weighting == "uniform":
            return [(link, 1.0 / (len(links) + 1)) for link in links]
        degrees = [len(self.topology.links(link.source, size, iteration)) for link in links]
        return [(link, 1.0 / (1 + max(len(links), d))) for link, d in zip(links, degrees, strict=True)]

    def matrix(self, size: int, iteration: int = 0) -> Tensor:
        """Return $T$, whose row is what one learner goes on from; float64."""
        rows = [[0.0] * size for _ in range(size)]
        for rank, row in enumerate(rows):
            shares = self.shares(rank, size, iteration)
            for link, share in shares:
                row[link.source] += share
            row[rank] += 1.0 - sum(share for _, share in shares)
        return torch.tensor(rows, dtype=torch.float64)


@dataclass(frozen=True)
class MatrixMixing:
    """A mixing matrix of the user's own, which must be symmetric, as D-PSGD asks, and doubly stochastic."""

    rows: tuple[tuple[float, ...], ...]

    def check(self, size: int) -> None:
        """Raise `SettingsError` where this is not a mixing matrix of ``size`` learners."""
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
            raise SettingsError(
                f"the mixing matrix is not symmetric: ({a}, {b}) is {self.rows[a][b]:g}, "
                f"({b}, {a}) is {self.rows[b][a]:g}"
            )

    def shares(self, rank: int, size: int, iteration: int = 0) -> list[tuple[Edge, float]]:
        """Return the links of ``rank`` with their shares."""
        return [(Edge(k, k), share) for k, share in enumerate(self.rows[rank]) if share and k != rank]

    def matrix(self, size: int, iteration: int = 0) -> Tensor:
        """Return $T$; float64."""
        return torch.tensor(self.rows, dtype=torch.float64)


def check_matrix(matrix: Tensor | Sequence[Sequence[float]], what: str = "the mixing matrix") -> None:
    """Raise `SettingsError` where ``matrix`` is not doubly stochastic, naming the row or column and its sum."""
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


def contraction(matrix: Tensor) -> float:
    """Return by what factor ``matrix`` shrinks the distance from the mean at least: its norm across the mean."""
    size = len(matrix)
    return float(torch.linalg.matrix_norm(matrix - 1.0 / size, ord=2)) if size > 1 else 0.0
