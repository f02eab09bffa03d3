r"""How fast mixing alone makes learners equal, by formula and by measurement.

Without gradients the weights of all learners, one row each, follow $X_{k+1} = T_k X_k$.  Their distance from the mean
shrinks by a factor per iteration, the *contraction*; one minus it is the *gap*.  For a fixed $T$ it is the largest
absolute eigenvalue except 1.  For a $T$ that repeats it is the geometric mean over one cycle, and for a random $T$ the
root mean square.  All in float64.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.strategies.mixing import Mixing, MixingBase
from roundelay.strategies.topologies import Topology

ONE_PERCENT = 0.01
NOTHING = 1e-12  # distances below this are 0 in exact arithmetic
DRAWS = 400  # iterations in which a random topology is measured
STARTS = 64  # random vectors for a curve


@dataclass(frozen=True)
class Consensus:
    """How fast a topology mixes."""

    topology: str
    learners: int
    degree: float
    """Models that a learner sends per iteration, on average."""
    contraction: float
    by_formula: bool
    measured: float
    """The contraction, measured by mixing random vectors."""
    exact_after: int | None
    """Iterations after which all have exactly the mean; ``None``: never."""
    steps: float
    """Iterations until the distance is 1 % of the first."""

    @property
    def gap(self) -> float:
        """Return the spectral gap."""
        return 1.0 - self.contraction


def consensus(mixing: MixingBase, size: int, *, seed: int = 0) -> Consensus:
    """Return how fast ``size`` learners reach a consensus."""
    mixing.check(size)
    rounds, exact = cycle(mixing, size), together(mixing, size)
    known = formula(mixing.topology, size) if isinstance(mixing, Mixing) and mixing.weighting == "uniform" else None
    measured = measure(mixing, size, seed=seed)
    links = [len(mixing.shares(rank, size, k)) for k in range(max(1, rounds)) for rank in range(size)]
    value = known if known is not None else _contraction(mixing, size, exact, measured)
    return Consensus(
        topology=mixing.topology.name if isinstance(mixing, Mixing) else "given",
        learners=size,
        degree=sum(links) / len(links),
        contraction=value,
        by_formula=known is not None,
        measured=measured,
        exact_after=exact,
        steps=steps_to(value) if value else _count_steps(mixing, size),
    )


def _contraction(mixing: MixingBase, size: int, exact: int | None, measured: float) -> float:
    if exact is not None:
        return 0.0
    return eigenvalue(mixing, size) if cycle(mixing, size) else measured


def steps_to(contraction: float, distance: float = ONE_PERCENT) -> float:
    """Return how many iterations of ``contraction`` bring the distance down from 1 to ``distance``."""
    if contraction <= 0.0:
        return 1.0
    return math.log(distance) / math.log(contraction) if contraction < 1.0 else math.inf


def cycle(mixing: MixingBase, size: int) -> int:
    """Return the number of iterations after which ``mixing`` repeats; 0: it is random."""
    return mixing.topology.cycle(size) if isinstance(mixing, Mixing) else 1


# -- by formula ------------------------------------------------------------------------------------------------------


def formula(topology: Topology, size: int) -> float | None:
    r"""Return the contraction if there is a closed form for uniform shares, else ``None``.

    Ring: $1/3 + (2/3)\cos(2\pi/n)$.  Random ring, in the root mean square: $\sqrt{(n/3-1)/(n-1)}$.  Static exponential
    graph, an even number: $(t-1)/(t+1)$ with $t = \lceil\log_2 n\rceil$.  Complete, butterfly, and the one-peer
    exponential graph with a power of two: 0.
    """
    power_of_two = size & (size - 1) == 0
    if size == 1 or topology.name in ("complete", "butterfly") or (topology.name == "exponential" and power_of_two):
        return 0.0
    if topology.name in ("ring", "random-ring") and size <= 3:
        return 0.0  # all are neighbours of each other
    if topology.name == "ring":
        return abs(1 / 3 + 2 / 3 * math.cos(2 * math.pi / size))
    if topology.name == "random-ring":
        return math.sqrt((size / 3 - 1) / (size - 1))
    if topology.name == "static-exponential" and size % 2 == 0:
        distances = (size - 1).bit_length()
        return (distances - 1) / (distances + 1)
    return None


def pairwise(topology: Topology, size: int) -> float:
    r"""Return the contraction, in the mean square, of size/2 pairwise averages over random edges of ``topology``.

    This is AD-PSGD as Lian et al. write it: at each event a learner averages with one neighbour, and both then have
    the mean, $W = I - \frac{1}{2}(e_i-e_j)(e_i-e_j)^\top$.  Since $W^\top W = W$, its expectation over the edges $E$ of
    the graph with Laplacian $L$ is $I - L/(2|E|)$.
    """
    edges = {
        (min(rank, link.source), max(rank, link.source))
        for k in range(max(1, topology.cycle(size)))
        for rank in range(size)
        for link in topology.links(rank, size, k)
    }
    if topology.cycle(size) == 0:
        edges = {(a, b) for a in range(size) for b in range(a + 1, size)}  # all are equally likely
    if not edges:
        return 0.0
    expected = torch.eye(size, dtype=torch.float64)
    for a, b in edges:
        for row, column, sign in ((a, a, -1), (b, b, -1), (a, b, 1), (b, a, 1)):
            expected[row, column] += sign / (2 * len(edges))
    second = float(torch.linalg.eigvalsh(expected)[-2])
    return second ** (size / 2) if second > 0 else 0.0


# -- by measurement --------------------------------------------------------------------------------------------------


def matrices(mixing: MixingBase, size: int) -> Iterator[Tensor]:
    """Return $T$ of each iteration."""
    kept = _one_cycle(mixing, size)
    return itertools.cycle(kept) if kept else (mixing.matrix(size, k) for k in itertools.count())


@functools.lru_cache(maxsize=2)
def _one_cycle(mixing: MixingBase, size: int) -> list[Tensor]:
    return [mixing.matrix(size, k) for k in range(cycle(mixing, size))]


def _cycle_product(mixing: MixingBase, size: int) -> Tensor:
    """Return the product of one cycle's matrices, across the mean."""
    product = _across(size)
    for matrix in _one_cycle(mixing, size):
        product = matrix @ product
    return product


def eigenvalue(mixing: MixingBase, size: int) -> float:
    """Return the contraction of a topology that repeats, from the eigenvalues of one cycle's product."""
    rounds = cycle(mixing, size)
    if size == 1 or not rounds:
        return 0.0
    largest = float(torch.linalg.eigvals(_cycle_product(mixing, size)).abs().max())
    return largest ** (1 / rounds) if largest > NOTHING else 0.0


def measure(mixing: MixingBase, size: int, *, seed: int = 0) -> float:
    """Measure the contraction: mix random vectors until only the slowest mode remains, then compare norms."""
    if size == 1:
        return 0.0
    generator, rounds = torch.Generator().manual_seed(seed), cycle(mixing, size)
    x = _across(size) @ torch.randn(size, 8, generator=generator, dtype=torch.float64)
    if rounds:
        x = _settled(mixing, size) @ x
    norm = float(torch.linalg.matrix_norm(x))
    looked, squares, logs = max(1, DRAWS // max(1, rounds)) * max(1, rounds), 0.0, 0.0
    for matrix in itertools.islice(matrices(mixing, size), looked):
        if norm < NOTHING:
            return 0.0
        x = matrix @ ((x - x.mean(0)) / norm)
        norm = float(torch.linalg.matrix_norm(x))
        squares, logs = squares + norm * norm, logs + math.log(max(norm, NOTHING))
    return math.exp(logs / looked) if rounds else math.sqrt(squares / looked)


def _settled(mixing: MixingBase, size: int) -> Tensor:
    """Return the product of some n² iterations, after which a ring's slowest mode dominates, up to a factor."""
    product = _cycle_product(mixing, size)
    for _ in range(max(6, 2 * size.bit_length())):
        norm = float(torch.linalg.matrix_norm(product))
        if norm < NOTHING:
            return torch.zeros_like(product)
        product = (product / norm) @ (product / norm)
    return product


def together(mixing: MixingBase, size: int) -> int | None:
    """Return the iterations after which all have exactly the mean; ``None``: never, within float64."""
    product, before = _across(size), 1.0
    for k, matrix in zip(range(1, 2 * cycle(mixing, size) + 1), matrices(mixing, size), strict=False):
        product = matrix @ product
        norm = float(torch.linalg.matrix_norm(product))
        if norm < NOTHING < before / 100:  # in one iteration, not gradually
            return k
        before = norm
    return None


def _count_steps(mixing: MixingBase, size: int) -> float:
    """Count iterations until the distance is at most 1 % of the first, for any start."""
    product = _across(size)
    for k, matrix in zip(range(1, 100 * size), matrices(mixing, size), strict=False):
        product = matrix @ product
        if float(torch.linalg.matrix_norm(product, ord=2)) <= ONE_PERCENT:
            return float(k)
    return math.inf


def curve(mixing: MixingBase, size: int, iterations: int) -> list[float]:
    """Return the consensus distance after 0, 1, 2, … iterations, as the root mean square over starts."""
    x = _across(size)
    if size > STARTS:  # some random starts instead of all
        x = x @ torch.randn(size, STARTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, distances = float(torch.linalg.matrix_norm(x)), [1.0]
    for matrix in itertools.islice(matrices(mixing, size), iterations):
        x = matrix @ x
        distances.append(float(torch.linalg.matrix_norm(x)) / max(first, NOTHING))
    return distances


def noise_gain(mixing: MixingBase, size: int) -> float:
    r"""Return how far gradient noise keeps learners apart: $E\|w_l-\bar w\|^2 / (\gamma^2 s^2)$ in the steady state.

    For a fixed $T$ it is $\frac{1}{n}\sum_{j\ge0} (\mathrm{tr}\,T^{2j} - 1)$.  The first term is the learner's own last
    gradient, which is not mixed yet.
    """
    rounds = cycle(mixing, size)
    if not rounds:
        known = formula(mixing.topology, size) if isinstance(mixing, Mixing) else None
        factor = known if known is not None else measure(mixing, size)
        return (1 - 1 / size) / (1 - factor**2)
    kept, across = _one_cycle(mixing, size), _across(size)
    product, covariance = across, torch.zeros_like(across)
    for matrix in kept:
        product, covariance = matrix @ product, matrix @ covariance @ matrix.T + across
    if size > 1 and eigenvalue(mixing, size) > 1 - NOTHING:
        raise SettingsError("this mixing never reaches a consensus: the topology is not connected; use another one")
    while float(torch.linalg.matrix_norm(product)) > NOTHING:  # sum of P^j S (P^j)' over all cycles, by doubling
        covariance = covariance + product @ covariance @ product.T
        product = product @ product
    traces = []
    for matrix in kept:
        covariance = matrix @ covariance @ matrix.T + across
        traces.append(float(torch.trace(covariance)))
    return sum(traces) / len(traces) / size


def _across(size: int) -> Tensor:
    """Return the projection that removes the mean."""
    return torch.eye(size, dtype=torch.float64) - 1.0 / size
