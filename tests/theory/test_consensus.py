"""How fast learners come together: formula, eigenvalues and measurement agree, with the table too."""

from __future__ import annotations

import math

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.strategies.mixing import MatrixMixing, Mixing
from roundelay.strategies.topologies import find_topology
from roundelay.theory.consensus import consensus, formula, measure, noise_gain, pairwise, steps_to, together

# The table of the literature: learners, second eigenvalue of the ring, steps to 1 %, rms contraction of the random ring
# and its steps.
TABLE = (
    (4, 0.3333, 4.2, 0.333, 4.2),
    (8, 0.8047, 21, 0.488, 6.4),
    (16, 0.9493, 88, 0.538, 7.4),
    (32, 0.9872, 357, 0.558, 7.9),
    (64, 0.9968, 1432, 0.568, 8.1),
    pytest.param(128, 0.9992, 5732, 0.573, 8.3, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("size", "eigenvalue", "steps", "rms", "random_steps"), TABLE)
def test_rings_are_as_fast_as_the_table_says(
    size: int, eigenvalue: float, steps: float, rms: float, random_steps: float
) -> None:
    ring = consensus(Mixing(find_topology("ring")), size)
    assert ring.by_formula
    assert ring.contraction == pytest.approx(eigenvalue, abs=5e-5)
    assert ring.steps == pytest.approx(steps, rel=0.01)
    assert 1 - ring.measured == pytest.approx(ring.gap, rel=0.01)
    across = Mixing(find_topology("ring")).matrix(size) - 1.0 / size
    assert float(torch.linalg.matrix_norm(across, ord=2)) == pytest.approx(ring.contraction, abs=1e-9)
    random = consensus(Mixing(find_topology("random-ring", seed=11)), size)
    assert random.contraction == pytest.approx(rms, abs=6e-4)
    assert random.steps == pytest.approx(random_steps, abs=0.06)
    assert random.measured == pytest.approx(rms, abs=0.02)  # 400 draws


def test_pairwise_gossip_is_as_fast_as_the_table_says() -> None:
    ring = [pairwise(find_topology("ring"), size) for size in (8, 16, 64)]
    complete = [pairwise(find_topology("complete"), size) for size in (8, 16, 64)]
    assert ring == pytest.approx([0.861, 0.963, 0.9976], abs=5e-4)
    assert complete == pytest.approx([0.540, 0.576, 0.599], abs=5e-4)
    generator, square, x = torch.Generator().manual_seed(0), [], torch.eye(8, dtype=torch.float64) - 1 / 8
    for _ in range(3000):  # the mean square over one event, measured
        a, b = torch.randperm(8, generator=generator)[:2].tolist()
        y = x.clone()
        y[a] = y[b] = (x[a] + x[b]) / 2
        square.append(float((y * y).sum() / (x * x).sum()))
    assert sum(square) / len(square) == pytest.approx(0.540 ** (1 / 4), rel=0.01)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_these_reach_the_very_mean(size: int) -> None:
    rounds = size.bit_length() - 1
    assert together(Mixing(find_topology("complete")), size) == 1
    assert together(Mixing(find_topology("butterfly")), size) == rounds
    assert together(Mixing(find_topology("exponential")), size) == rounds
    assert together(Mixing(find_topology("ring")), size) is None
    assert consensus(Mixing(find_topology("butterfly")), size).steps == rounds
    assert formula(find_topology("butterfly"), size) == measure(Mixing(find_topology("butterfly")), size) == 0


@pytest.mark.parametrize("name", ["hopping-ring", "exponential", "bipartite", "static-exponential"])
@pytest.mark.parametrize("size", [6, 8, 10, 33])
def test_formula_eigenvalues_and_measurement_agree(name: str, size: int) -> None:
    figures = consensus(Mixing(find_topology(name).or_fallback(size)), size)
    assert figures.measured == pytest.approx(figures.contraction, rel=0.01, abs=1e-9)


def test_steps_follow_the_contraction() -> None:
    assert steps_to(0.1) == pytest.approx(2.0)
    assert steps_to(0.0) == 1.0
    assert steps_to(1.0) == math.inf
    with pytest.raises(SettingsError, match="never reaches a consensus"):
        noise_gain(MatrixMixing(((1.0, 0.0), (0.0, 1.0))), 2)


def test_noise_keeps_learners_as_far_apart_as_the_trace_says() -> None:
    matrix = Mixing(find_topology("ring")).matrix(8)
    by_trace = sum((float(torch.trace(torch.linalg.matrix_power(matrix, 2 * j))) - 1) / 8 for j in range(400))
    assert noise_gain(Mixing(find_topology("ring")), 8) == pytest.approx(by_trace, rel=1e-9)
    assert noise_gain(Mixing(find_topology("complete")), 8) == pytest.approx(1 - 1 / 8)  # as delay by one
    generator, x, seen = torch.Generator().manual_seed(0), torch.zeros(8, 500, dtype=torch.float64), []
    for k in range(200):  # and as seen
        x = matrix @ x - torch.randn(8, 500, generator=generator, dtype=torch.float64)
        seen.append(float((x - x.mean(0)).square().mean()) if k >= 100 else 0.0)
    assert sum(seen) / 100 == pytest.approx(by_trace, rel=0.03)
