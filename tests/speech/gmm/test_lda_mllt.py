"""LDA and MLLT against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.gaussian_mixtures import Gmm, accumulate, update
from roundelay.speech.gmm.lda_mllt import (
    MlltStatistics,
    Scatter,
    collect_mllt,
    estimate_lda,
    estimate_mllt,
)


def classes(seed: int = 0, frames: int = 3000) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, frames)
    mix = rng.standard_normal((8, 8))
    means = np.zeros((5, 8))
    means[:, :2] = rng.normal(0, 3, (5, 2))  # classes differ in two directions only
    return (means[labels] + rng.standard_normal((frames, 8))) @ mix.T, labels


def test_scatter_is_that_of_the_definition_and_adds_up() -> None:
    frames, labels = classes()
    scatter = Scatter.collect(frames[:1000], labels[:1000], 6)
    scatter += Scatter.collect(frames[1000:], labels[1000:], 6)
    within, between = scatter.covariances()
    means = np.stack([frames[labels == c].mean(0) for c in range(5)])
    centred = frames - means[labels]
    assert np.allclose(within, centred.T @ centred / len(frames))
    spread = means[labels] - frames.mean(0)
    assert np.allclose(between, spread.T @ spread / len(frames))


def test_lda_solves_the_generalised_eigenproblem() -> None:
    frames, labels = classes()
    scatter = Scatter.collect(frames, labels, 5)
    within, between = scatter.covariances()
    rows = estimate_lda(scatter, 4)
    assert np.allclose(rows @ within @ rows.T, np.eye(4), atol=1e-4)
    values = np.diag(rows @ between @ rows.T)
    for value, row in zip(values, rows, strict=True):
        assert np.allclose(between @ row, value * within @ row, atol=1e-3 * np.abs(within @ row).max())
    assert (np.diff(values) <= 1e-9).all()
    largest = np.sort(np.linalg.eigvals(np.linalg.solve(within, between)).real)[::-1]
    assert values == pytest.approx(largest[:4], rel=1e-3, abs=1e-5)


def test_lda_keeps_the_two_directions_that_matter() -> None:
    frames, labels = classes()
    rows = estimate_lda(Scatter.collect(frames, labels, 5), 8)
    projected = frames @ rows.T
    ratio = np.array([np.var([x[labels == c].mean() for c in range(5)]) for x in projected.T])
    assert ratio[:2].min() > 50 * ratio[2:].max()


def test_lda_cannot_keep_more_than_there_is() -> None:
    with pytest.raises(DataError, match="9 features cannot be kept of 8"):
        estimate_lda(Scatter.collect(*classes(), 5), 9)


def correlated(seed: int = 0, frames: int = 6000) -> tuple[Array, Array, Array]:
    """Two classes with diagonal covariances in a hidden space, seen through a matrix."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, frames)
    deviations = np.array([[1.0, 0.3, 2.0], [0.4, 1.5, 0.7]])
    hidden = rng.normal(0, 2, (2, 3))[labels] + deviations[labels] * rng.standard_normal((frames, 3))
    mix = np.array([[1.0, 0.6, -0.3], [0.2, 1.0, 0.5], [-0.4, 0.3, 1.0]])
    return hidden @ mix.T, labels, mix


def fitted(frames: Array, labels: Array) -> Gmm:
    rows = np.concatenate([np.ones((len(frames), 1)), frames, frames**2], axis=1)
    return Gmm.single(np.stack([rows[labels == c].sum(0) for c in range(2)]), np.full(frames.shape[1], 1e-6))


def test_mllt_statistics_are_those_of_the_definition() -> None:
    frames, labels, _ = correlated(frames=500)
    gmm = fitted(frames, labels).grow(4, np.array([250.0, 250.0]), np.random.default_rng(0))
    statistics = collect_mllt(gmm, frames, labels)
    expected = np.zeros((3, 3, 3))
    for g in range(4):
        senone = int(np.searchsorted(gmm.first, g, side="right") - 1)
        own = frames[labels == senone]
        group = range(gmm.first[senone], gmm.first[senone + 1])
        each = np.stack(
            [
                gmm.weights[m]
                * np.exp(-0.5 * ((own - gmm.means[m]) ** 2 / gmm.variances[m]).sum(1))
                / np.sqrt(gmm.variances[m].prod())
                for m in group
            ]
        )
        share = each[g - gmm.first[senone]] / each.sum(0)
        centred = own - gmm.means[g]
        scatter = (centred * share[:, None]).T @ centred
        expected += scatter / gmm.variances[g][:, None, None]
    assert np.allclose(statistics.scatter, expected, rtol=1e-3, atol=1e-2)
    assert statistics.frames == 500


def mllt_objective(statistics: MlltStatistics, a: Array) -> float:
    """Return the value that ``estimate_mllt`` maximises."""
    quadratic = np.einsum("di,dij,dj->", a, statistics.scatter, a)
    return float(statistics.frames * np.linalg.slogdet(a)[1] - 0.5 * quadratic)


def test_mllt_raises_its_objective_and_the_likelihood() -> None:
    frames, labels, _ = correlated()
    gmm = fitted(frames, labels)
    before = accumulate(gmm, frames, labels).log_likelihood
    statistics = collect_mllt(gmm, frames, labels)
    values = [mllt_objective(statistics, estimate_mllt(statistics, n)) for n in (0, 1, 2, 5, 20)]
    assert values == sorted(values)
    assert values[-1] > values[0] + 100
    a = estimate_mllt(statistics)
    turned = frames @ a.T
    after = accumulate(fitted(turned, labels), turned, labels).log_likelihood + len(frames) * np.linalg.slogdet(a)[1]
    assert after > before + 100


def test_repeated_mllt_recovers_the_hidden_space() -> None:
    frames, labels, mix = correlated()
    total = np.eye(3)
    for _ in range(30):
        turned = frames @ total.T
        total = estimate_mllt(collect_mllt(fitted(turned, labels), turned, labels)) @ total
    product = np.abs(total @ mix)  # a scaled permutation where the hidden axes are found again
    ordered = np.sort(product, axis=1)
    assert (ordered[:, -1] > 8 * ordered[:, -2]).all()
    assert sorted(product.argmax(1)) == [0, 1, 2]


def test_mllt_statistics_add_up() -> None:
    frames, labels, _ = correlated(frames=400)
    gmm = fitted(frames, labels)
    parts = MlltStatistics(np.zeros((3, 3, 3)), 0.0)
    parts += collect_mllt(gmm, frames[:150], labels[:150])
    parts += collect_mllt(gmm, frames[150:], labels[150:])
    assert np.allclose(parts.scatter, collect_mllt(gmm, frames, labels).scatter, rtol=1e-4, atol=1e-2)


def test_mllt_then_estimation_raises_the_likelihood_of_mixtures() -> None:
    frames, labels, _ = correlated()
    gmm = fitted(frames, labels).grow(6, np.array([3000.0, 3000.0]), np.random.default_rng(0))
    for _ in range(5):
        gmm = update(gmm, accumulate(gmm, frames, labels), np.full(3, 1e-6))
    before = accumulate(gmm, frames, labels).log_likelihood
    a = estimate_mllt(collect_mllt(gmm, frames, labels))
    turned = Gmm(gmm.counts, gmm.weights, gmm.means @ a.T, gmm.variances)
    after = accumulate(turned, frames @ a.T, labels).log_likelihood + len(frames) * np.linalg.slogdet(a)[1]
    assert after > before
