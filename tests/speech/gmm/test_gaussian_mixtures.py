"""Gaussian mixtures against their definition."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.gaussian_mixtures import Gmm, Statistics, accumulate, update

FLOOR = np.full(3, 1e-3)


def mixtures(seed: int = 0, counts: tuple[int, ...] = (1, 3, 5, 2)) -> Gmm:
    rng = np.random.default_rng(seed)
    total = sum(counts)
    weights = np.concatenate([rng.dirichlet(np.ones(n)) for n in counts])
    return Gmm(np.array(counts), weights, rng.normal(0, 2, (total, 3)), rng.uniform(0.2, 2, (total, 3)))


def densities(gmm: Gmm, frames: Array, senone: int) -> Array:
    """Weighted densities of each Gaussian of a senone, from their definition: (T, M)."""
    own = slice(gmm.first[senone], gmm.first[senone + 1])
    gap = frames[:, None] - gmm.means[own]
    scale = np.prod(2 * np.pi * gmm.variances[own], axis=1) ** -0.5
    each: Array = gmm.weights[own] * scale * np.exp(-0.5 * (gap**2 / gmm.variances[own]).sum(-1))
    return each


def aligned(seed: int = 1, frames: int = 800) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    senones = rng.integers(0, 4, frames)
    centres = rng.normal(0, 3, (4, 2, 3))
    return centres[senones, rng.integers(0, 2, frames)] + 0.5 * rng.standard_normal((frames, 3)), senones


def test_scores_are_log_densities_of_the_senones_asked_for() -> None:
    gmm = mixtures()
    frames = np.random.default_rng(2).normal(0, 2, (20, 3)).astype(np.float32)
    scores = gmm.score(frames, np.array([2, 0, 3]))
    expected = [np.log(densities(gmm, frames, senone).sum(1)) for senone in (2, 0, 3)]
    assert np.allclose(scores, expected, atol=1e-3)


def test_far_frames_still_have_finite_scores() -> None:
    scores = mixtures().score(np.full((2, 3), 300.0, np.float32), np.arange(4))
    assert np.isfinite(scores).all()
    assert len(np.unique(scores[:, 0])) == 4


def test_statistics_are_sums_of_posteriors() -> None:
    gmm = mixtures()
    frames, senones = aligned(frames=200)
    statistics = accumulate(gmm, frames.astype(np.float32), senones)
    for senone in range(4):
        own = frames[senones == senone]
        each = densities(gmm, own, senone)
        shares = each / each.sum(1, keepdims=True)
        rows = statistics.moments[gmm.first[senone] : gmm.first[senone + 1]]
        assert np.allclose(rows[:, 0], shares.sum(0), rtol=1e-3, atol=1e-3)
        assert np.allclose(rows[:, 1:4], shares.T @ own, rtol=1e-3, atol=1e-2)
        assert np.allclose(rows[:, 4:], shares.T @ own**2, rtol=1e-3, atol=1e-2)
    total = sum(np.log(densities(gmm, frames[senones == s], s).sum(1)).sum() for s in range(4))
    assert statistics.log_likelihood == pytest.approx(total, rel=1e-4)
    assert statistics.occupancy(gmm) == pytest.approx(np.bincount(senones), rel=1e-4)


def test_statistics_add_up() -> None:
    gmm = mixtures()
    frames, senones = aligned()
    whole = accumulate(gmm, frames, senones)
    parts = Statistics.empty(gmm)
    parts += accumulate(gmm, frames[:300], senones[:300])
    parts += accumulate(gmm, frames[300:], senones[300:])
    assert np.allclose(whole.moments, parts.moments, rtol=1e-4, atol=1e-3)
    assert whole.frames == parts.frames == 800


def test_estimation_never_lowers_the_likelihood() -> None:
    gmm = mixtures()
    frames, senones = aligned()
    history = []
    for _ in range(12):
        statistics = accumulate(gmm, frames, senones)
        history.append(statistics.log_likelihood)
        before = gmm.num_gaussians
        gmm = update(gmm, statistics, FLOOR)
        if gmm.num_gaussians < before:  # dropping a Gaussian is no step of EM
            history.clear()
    assert len(history) > 4
    assert (np.diff(history) >= -1e-3 * np.abs(history[0])).all()
    assert history[-1] > history[0]


def test_single_gaussians_have_the_moments_of_their_frames() -> None:
    frames, senones = aligned()
    senones = senones % 3
    rows = np.concatenate([np.ones((len(frames), 1)), frames, frames**2], axis=1)
    moments = np.stack([rows[senones == s].sum(0) for s in range(4)])
    gmm = Gmm.single(moments, FLOOR)
    for senone in range(3):
        assert np.allclose(gmm.means[senone], frames[senones == senone].mean(0))
        assert np.allclose(gmm.variances[senone], frames[senones == senone].var(0))
    assert np.allclose(gmm.means[3], frames.mean(0))  # never seen: that of all frames


def test_growth_splits_where_the_data_are_and_keeps_weights() -> None:
    gmm = mixtures(counts=(1, 1, 1, 1))
    grown = gmm.grow(20, np.array([5000.0, 1000.0, 0.0, 50.0]), np.random.default_rng(0))
    assert grown.num_gaussians == 20
    assert grown.counts[0] > grown.counts[1] > grown.counts[3] >= 1
    assert grown.counts[2] == 1  # no data, no split
    for senone in range(4):
        assert grown.weights[grown.first[senone] : grown.first[senone + 1]].sum() == pytest.approx(1.0)


def test_growth_finds_two_clusters() -> None:
    rng = np.random.default_rng(0)
    frames = np.where(rng.random(2000)[:, None] < 0.3, -4.0, 4.0) + rng.standard_normal((2000, 3))
    senones = np.zeros(2000, int)
    rows = np.concatenate([np.ones((2000, 1)), frames, frames**2], axis=1)
    gmm = Gmm.single(rows.sum(0)[None], FLOOR).grow(2, np.array([2000.0]), rng)
    for _ in range(30):
        gmm = update(gmm, accumulate(gmm, frames, senones), FLOOR)
    assert sorted(gmm.weights.round(2)) == pytest.approx([0.3, 0.7], abs=0.03)
    assert np.allclose(sorted(gmm.means[:, 0]), [-4, 4], atol=0.2)


def test_starved_gaussians_go_but_no_senone_is_left_without() -> None:
    gmm = mixtures(counts=(3, 2))
    statistics = Statistics.empty(gmm)
    statistics.moments[0] = [100.0, 0, 0, 0, 100, 100, 100]
    statistics.moments[3] = [1.0, 1, 1, 1, 1, 1, 1]
    new = update(gmm, statistics, FLOOR)
    assert new.counts.tolist() == [1, 1]
    assert np.allclose(new.means[1], gmm.means[3])  # one frame is no estimate: as it was
    assert np.allclose(new.variances[0], 1.0)


def test_variance_is_floored() -> None:
    frames = np.tile([1.0, 2.0, 3.0], (50, 1))
    gmm = mixtures(counts=(1,))
    assert np.allclose(update(gmm, accumulate(gmm, frames, np.zeros(50, int)), FLOOR).variances, FLOOR)


def test_moments_may_be_of_other_features() -> None:
    gmm = mixtures(counts=(2,))
    rng = np.random.default_rng(0)
    frames = rng.standard_normal((60, 3))
    other = frames * 2 + 1
    statistics = accumulate(gmm, frames, np.zeros(60, int), moments_of=other)
    assert np.allclose(statistics.moments[:, 0], accumulate(gmm, frames, np.zeros(60, int)).moments[:, 0])
    assert np.allclose(statistics.moments[:, 1:4].sum(0), other.sum(0), rtol=1e-4)


def test_pickled_mixtures_score_alike() -> None:
    gmm = mixtures()
    frames = np.zeros((2, 3), np.float32)
    assert np.array_equal(pickle.loads(pickle.dumps(gmm)).score(frames, np.arange(4)), gmm.score(frames, np.arange(4)))
