"""fMLLR against its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.fmllr import (
    FmllrStatistics,
    SpeakerTransforms,
    collect_fmllr,
    estimate_fmllr,
    transform,
)
from roundelay.speech.gmm.front_end import FrontEnd, Normaliser
from roundelay.speech.gmm.gaussian_mixtures import Gmm, accumulate


def speaker(seed: int = 0, frames: int = 4000) -> tuple[Gmm, Array, Array, Array]:
    """A model, frames of a speaker who moves its space by a known transform, their senones, and the way back."""
    rng = np.random.default_rng(seed)
    gmm = Gmm(np.full(6, 2), np.full(12, 0.5), rng.normal(0, 3, (12, 3)), rng.uniform(0.3, 1.0, (12, 3)))
    senones = rng.integers(0, 6, frames)
    chosen = 2 * senones + rng.integers(0, 2, frames)
    typical = gmm.means[chosen] + np.sqrt(gmm.variances[chosen]) * rng.standard_normal((frames, 3))
    a = np.eye(3) + 0.25 * rng.standard_normal((3, 3))
    b = rng.standard_normal(3)
    seen = (typical - b) @ np.linalg.inv(a).T
    return gmm, seen.astype(np.float32), senones, np.concatenate([a, b[:, None]], axis=1)


def apply(matrix: Array, frames: Array) -> Array:
    return frames @ matrix[:, :-1].T + matrix[:, -1]


def likelihood(gmm: Gmm, matrix: Array, frames: Array, senones: Array) -> float:
    jacobian = len(frames) * np.linalg.slogdet(matrix[:, :-1])[1]
    return float(accumulate(gmm, apply(matrix, frames), senones).log_likelihood + jacobian)


def test_statistics_are_those_of_the_definition() -> None:
    gmm, frames, senones, _ = speaker(frames=300)
    statistics = collect_fmllr(gmm, frames, senones)
    linear, quadratic = np.zeros((3, 4)), np.zeros((3, 4, 4))
    for x, senone in zip(frames.astype(float), senones, strict=True):
        own = slice(2 * senone, 2 * senone + 2)
        each = np.exp(-0.5 * ((x - gmm.means[own]) ** 2 / gmm.variances[own]).sum(1)) / np.sqrt(
            gmm.variances[own].prod(1)
        )
        shares = each / each.sum()
        wide = np.append(x, 1.0)
        for d in range(3):
            precision = (shares / gmm.variances[own, d]).sum()
            linear[d] += (shares * gmm.means[own, d] / gmm.variances[own, d]).sum() * wide
            quadratic[d] += precision * np.outer(wide, wide)
    assert np.allclose(statistics.linear, linear, rtol=1e-3, atol=1e-1)
    assert np.allclose(statistics.quadratic, quadratic, rtol=1e-3, atol=1e-1)
    assert statistics.frames == 300


def fmllr_objective(statistics: FmllrStatistics, matrix: Array) -> float:
    """Return the value that ``estimate_fmllr`` maximises: the gain of likelihood, up to a constant."""
    linear = (matrix * statistics.linear).sum()
    quadratic = np.einsum("di,dij,dj->", matrix, statistics.quadratic, matrix)
    return float(statistics.frames * np.linalg.slogdet(matrix[:, :-1])[1] + linear - 0.5 * quadratic)


def test_every_iteration_raises_the_objective() -> None:
    gmm, frames, senones, _ = speaker()
    statistics = collect_fmllr(gmm, frames, senones)
    values = [fmllr_objective(statistics, estimate_fmllr(statistics, n)) for n in (0, 1, 2, 4, 15)]
    assert values == sorted(values)
    assert values[-1] > values[0] + 100


def test_estimate_is_a_maximum() -> None:
    gmm, frames, senones, _ = speaker()
    statistics = collect_fmllr(gmm, frames, senones)
    matrix = estimate_fmllr(statistics, 50)
    best = fmllr_objective(statistics, matrix)
    rng = np.random.default_rng(1)
    for _ in range(50):
        assert fmllr_objective(statistics, matrix + 1e-2 * rng.standard_normal(matrix.shape)) < best


def test_repeated_estimation_recovers_the_known_transform() -> None:
    gmm, frames, senones, expected = speaker()
    matrix = np.eye(3, 4)
    values = [likelihood(gmm, matrix, frames, senones)]
    for _ in range(8):
        matrix = estimate_fmllr(collect_fmllr(gmm, frames, senones, adapted=apply(matrix, frames).astype(np.float32)))
        values.append(likelihood(gmm, matrix, frames, senones))
    assert (np.diff(values) > -1.0).all()
    assert np.allclose(matrix, expected, atol=0.08)


def test_little_speech_changes_nothing() -> None:
    gmm, frames, senones, _ = speaker(frames=100)
    assert np.array_equal(estimate_fmllr(collect_fmllr(gmm, frames, senones)), np.eye(3, 4))
    assert np.array_equal(estimate_fmllr(FmllrStatistics.empty(3)), np.eye(3, 4))


def test_statistics_add_up() -> None:
    gmm, frames, senones, _ = speaker(frames=600)
    parts = FmllrStatistics.empty(3)
    parts += collect_fmllr(gmm, frames[:200], senones[:200])
    parts += collect_fmllr(gmm, frames[200:], senones[200:])
    whole = collect_fmllr(gmm, frames, senones)
    assert np.allclose(parts.quadratic, whole.quadratic, rtol=1e-4, atol=1e-2)
    assert parts.frames == whole.frames


def transforms() -> SpeakerTransforms:
    rng = np.random.default_rng(0)
    front_end = FrontEnd(input="mfcc", context=1).projected(rng.standard_normal((4, 9)))
    norms = {name: Normaliser(rng.standard_normal(3).astype("f4"), np.ones(3, "f4")) for name in ("ann", "bob")}
    matrices = {name: rng.standard_normal((4, 5)).astype("f4") for name in ("ann", "bob")}
    return SpeakerTransforms(front_end, norms, matrices)


def test_features_are_normalised_spliced_projected_and_turned() -> None:
    whole = transforms()
    x = np.random.default_rng(1).standard_normal((6, 3)).astype("f4")
    adapted = dict(transform({"u1": x}, {"u1": "bob"}, whole))["u1"]
    centred = x - whole.normalisers["bob"].mean
    padded = np.concatenate([centred[:1], centred, centred[-1:]])
    spliced = np.concatenate([padded[:-2], padded[1:-1], padded[2:]], axis=1)
    assert whole.front_end.projection is not None
    expected = apply(whole.matrices["bob"], spliced @ whole.front_end.projection.T)
    assert np.allclose(adapted, expected, atol=1e-4)


def test_transforms_come_back_from_their_file(tmp_path: Path) -> None:
    whole = transforms()
    whole.save(tmp_path / "speakers.safetensors")
    copy = SpeakerTransforms.load(tmp_path / "speakers.safetensors")
    x = np.random.default_rng(1).standard_normal((6, 3)).astype("f4")
    for name in ("ann", "bob"):
        assert np.array_equal(copy(name, x), whole(name, x))


def test_unknown_speaker_is_named() -> None:
    with pytest.raises(DataError, match="speaker 'eve' has no transform"):
        transforms()("eve", np.zeros((3, 3)))
