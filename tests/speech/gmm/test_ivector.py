"""Speaker vectors against their definition and on speakers that differ in a known way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError, SettingsError
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.gaussian_mixtures import Gmm
from roundelay.speech.gmm.ivector import (
    BaumWelch,
    IvectorModel,
    speaker_vectors,
    train_ivectors,
    train_ubm,
)


def background() -> Gmm:
    means = np.array([[-6.0, 0, 0], [6, 0, 0], [0, 8, 0], [0, -8, 4]])
    return Gmm(np.array([4]), np.full(4, 0.25), means, np.full((4, 3), 0.5))


def speakers(seed: int, count: int, size: int = 2) -> tuple[Array, Array, list[Array]]:
    """True directions, true vectors, and frames of speakers."""
    rng = np.random.default_rng(seed)
    ubm = background()
    directions = 0.8 * rng.standard_normal((4, 3, size))
    vectors = rng.standard_normal((count, size))
    frames = []
    for w in vectors:
        component = rng.integers(0, 4, 400)
        means = ubm.means + directions @ w
        frames.append((means[component] + np.sqrt(0.5) * rng.standard_normal((400, 3))).astype(np.float32))
    return directions, vectors, frames


def test_posterior_is_that_of_the_linear_gaussian_model() -> None:
    directions, _, frames = speakers(0, 1)
    model = IvectorModel(background(), directions, scale=1.0)
    statistics = BaumWelch.collect(model.ubm, frames[0])
    mean, covariance = model.posterior(statistics)
    # As one regression: sums of Gaussian c are n_c T_c w plus noise of covariance n_c Σ_c.
    precision = np.eye(2)
    pull = np.zeros(2)
    for c in range(4):
        inverse = np.diag(1 / model.ubm.variances[c])
        precision = precision + statistics.occupancy[c] * directions[c].T @ inverse @ directions[c]
        pull = pull + directions[c].T @ inverse @ statistics.sums[c]
    assert np.allclose(covariance, np.linalg.inv(precision))
    assert np.allclose(mean, np.linalg.solve(precision, pull))


def test_no_frames_give_the_prior() -> None:
    model = IvectorModel(background(), speakers(0, 1)[0])
    mean, covariance = model.posterior(BaumWelch(np.zeros(4), np.zeros((4, 3))))
    assert np.allclose(mean, 0)
    assert np.allclose(covariance, np.eye(2))


def log_evidence(mean: Array, covariance: Array) -> float:
    """Return the log-probability of statistics with the vector integrated out, up to a constant."""
    pull = np.linalg.solve(covariance, mean)
    return float(0.5 * np.linalg.slogdet(covariance)[1] + 0.5 * pull @ mean)


def vector_of(model: IvectorModel, frames: Array) -> Array:
    return dict(speaker_vectors(model, [("one", frames)]))["one"]


def test_em_raises_the_evidence() -> None:
    _, _, frames = speakers(1, 60)
    statistics = [BaumWelch.collect(background(), x) for x in frames]

    def evidence(model: IvectorModel) -> float:
        return sum(log_evidence(*model.posterior(row)) for row in statistics)

    models = [train_ivectors(background(), statistics, 2, iterations=k, scale=1.0) for k in (0, 1, 2, 3, 8)]
    values = [evidence(model) for model in models]
    # The third step gains 1e-4 and the fourth 4e-9: after that EM stands still but for the last bits of 60 sums.
    assert values[0] + 100 < values[1] < values[2] < values[3]
    assert values[4] > values[3] * (1 - 60 * np.finfo(np.float64).eps)
    # There the evidence is at its top: longer and shorter directions lose alike, but for 0.2 % by its third derivative.
    longer, shorter = (
        evidence(IvectorModel(background(), models[4].directions * by, scale=1.0)) for by in (1.001, 0.999)
    )
    assert abs(longer - shorter) < 0.01 * (2 * values[4] - longer - shorter)


def test_vectors_tell_where_speakers_lie() -> None:
    _, vectors, frames = speakers(2, 80)
    statistics = [BaumWelch.collect(background(), x) for x in frames]
    model = train_ivectors(background(), statistics, 2, scale=1.0)
    found = np.array([model.posterior(row)[0] for row in statistics])
    # Vectors are known up to a linear map only: the true ones must follow from them by regression.
    wide = np.c_[found, np.ones(len(found))]
    rest = vectors - wide @ np.linalg.lstsq(wide, vectors, rcond=None)[0]
    assert rest.var() < 0.03 * vectors.var()


def test_utterances_of_a_speaker_are_nearer_than_those_of_others() -> None:
    _, _, frames = speakers(3, 40)
    model = train_ivectors(background(), [BaumWelch.collect(background(), x) for x in frames], 2)
    halves = {f"{s}-{i}": x[200 * i : 200 * i + 200] for s, x in enumerate(frames) for i in (0, 1)}
    vectors = dict(speaker_vectors(model, halves.items()))
    first = np.array([vectors[f"{s}-0"] for s in range(40)])
    second = np.array([vectors[f"{s}-1"] for s in range(40)])
    gaps = ((first[:, None] - second[None]) ** 2).sum(-1)
    assert (gaps.argmin(axis=1) == np.arange(40)).mean() > 0.7


def test_speaker_vectors_pool_utterances() -> None:
    directions, _, frames = speakers(4, 1)
    model = IvectorModel(background(), directions)
    parts = [("a", frames[0][:150]), ("b", frames[0][150:])]
    pooled = dict(speaker_vectors(model, parts, {"a": "ann", "b": "ann"}))
    assert list(pooled) == ["ann"]
    assert np.allclose(pooled["ann"], vector_of(model, frames[0]), atol=1e-4)
    assert pooled["ann"].dtype == np.float32


def test_background_finds_the_clusters() -> None:
    rng = np.random.default_rng(0)
    true = background()
    frames = true.means[rng.integers(0, 4, 4000)] + np.sqrt(0.5) * rng.standard_normal((4000, 3))
    ubm = train_ubm(frames.astype(np.float32), 8)  # more than there are, as EM from few may leave two in one
    gaps = ((ubm.means[:, None] - true.means[None]) ** 2).sum(-1)
    assert set(gaps.argmin(axis=1)) == {0, 1, 2, 3}
    assert gaps.min(axis=0).max() < 0.5


def test_model_comes_back_from_its_file(tmp_path: Path) -> None:
    directions, _, frames = speakers(5, 1)
    model = IvectorModel(background(), directions, 0.3)
    model.save(tmp_path / "ivector.safetensors")
    copy = IvectorModel.load(tmp_path / "ivector.safetensors")
    assert np.array_equal(vector_of(copy, frames[0]), vector_of(model, frames[0]))


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="30 frames are too few for 4 Gaussians"):
        train_ubm(np.zeros((30, 3)), 4)
    rows = [BaumWelch(np.ones(4), np.ones((4, 3)))] * 2
    with pytest.raises(SettingsError, match=r"ivector\.size must be from 1 to 12, not 13"):
        train_ivectors(background(), rows, 13)
    with pytest.raises(DataError, match="1 speakers are too few"):
        train_ivectors(background(), rows[:1], 2)
    model = IvectorModel(background(), np.zeros((4, 3, 2)))
    with pytest.raises(DataError, match="u9: features are not finite at frame 1"):
        list(speaker_vectors(model, [("u9", np.array([[0.0, 0, 0], [0, np.nan, 0]]))]))
