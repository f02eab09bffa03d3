"""Means and variances of frames."""

from __future__ import annotations

import numpy as np

from roundelay.speech.features.normalisation import Moments, moments_group, pool_moments


def test_moments_add_up() -> None:
    x = np.random.default_rng(0).normal(5, 3, (500, 4)).astype(np.float32)
    moments = Moments.from_frames(x[:100]) + Moments.from_frames(x[100:])
    normal = moments.apply(x)
    np.testing.assert_allclose(normal.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(normal.std(0), 1, atol=1e-5)
    constant = np.full((5, 4), 7, np.float32)
    assert np.all(Moments.from_frames(constant).apply(constant) == 0)


def test_groups_of_normalisation() -> None:
    assert moments_group("speaker", "s") == "s"
    assert moments_group("global", "s") == ""
    one = Moments.from_frames(np.ones((2, 1), np.float32))
    counts = {name: moments.count for name, moments in pool_moments([("a", one), ("b", one), ("a", one)]).items()}
    assert counts == {"a": 4, "b": 2}
