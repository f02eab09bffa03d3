"""Decision trees against direct computation."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest

from roundelay.errors import DataError, SettingsError
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.decision_tree import (
    VARIANCE_FLOOR,
    Tree,
    TreeStatistics,
    best_split,
    find_questions,
    log_likelihood,
)

PHONES = 7


def data(seed: int = 0, frames: int = 6000) -> tuple[Array, Array]:
    """Frames whose mean depends on centre, state, and on whether the left neighbour is of the family 1, 2, 3."""
    rng = np.random.default_rng(seed)
    contexts = np.stack([rng.integers(0, PHONES, frames) for _ in range(3)] + [rng.integers(0, 3, frames)], axis=1)
    family = np.array([0, 1, 1, 1, 2, 2, 2])[contexts[:, 1]]
    mean = rng.normal(0, 4, (3, 3, 4))[family, contexts[:, 3]] + 0.3 * contexts[:, 1:2]
    mean = mean + 3.0 * np.isin(contexts[:, 0], [1, 2, 3])[:, None]
    return contexts, mean + rng.standard_normal((frames, 4))


def fitted(frames: Array) -> float:
    """The likelihood of frames under the Gaussian with their mean and floored variance, from its definition."""
    variance = np.maximum(frames.var(axis=0), VARIANCE_FLOOR)
    density = -0.5 * (np.log(variance) + (frames - frames.mean(axis=0)) ** 2 / variance)
    return float(density.sum())


@pytest.mark.parametrize("scale", [1.0, 0.01])  # the small one meets the variance floor
def test_likelihood_is_that_of_the_fitted_gaussian(scale: float) -> None:
    frames = scale * np.random.default_rng(1).standard_normal((50, 3)) + 2.0
    moments = np.concatenate([[50.0], frames.sum(0), (frames**2).sum(0)])
    assert log_likelihood(moments) == pytest.approx(fitted(frames), rel=1e-6)


def test_statistics_merge_to_the_whole() -> None:
    contexts, frames = data(frames=500)
    whole = TreeStatistics.collect(PHONES, contexts, frames)
    parts = TreeStatistics.collect(PHONES, contexts[:200], frames[:200]).merge(
        TreeStatistics.collect(PHONES, contexts[200:], frames[200:])
    )
    assert np.array_equal(whole.keys, parts.keys)
    assert np.allclose(whole.moments, parts.moments)
    lefts, rights, moments = whole.select_state(3, 1)
    own = (contexts[:, 1] == 3) & (contexts[:, 3] == 1)
    assert moments[:, 0].sum() == own.sum()
    assert set(zip(lefts.tolist(), rights.tolist(), strict=True)) == {(l, r) for l, _, r, _ in contexts[own].tolist()}


def test_best_split_is_the_best_of_all_by_direct_computation() -> None:
    contexts, frames = data()
    statistics = TreeStatistics.collect(PHONES, contexts, frames)
    questions = np.array([[bool(i >> p & 1) for p in range(PHONES)] for i in range(1, 2**PHONES - 1)])
    split = best_split(*statistics.select_state(4, 2), questions, 5.0)
    own = (contexts[:, 1] == 4) & (contexts[:, 3] == 2)
    best = -np.inf
    for side, question in itertools.product((0, 2), questions):
        yes = question[contexts[own, side]]
        if min(yes.sum(), (~yes).sum()) >= 5:
            best = max(best, fitted(frames[own][yes]) + fitted(frames[own][~yes]) - fitted(frames[own]))
    assert split is not None
    assert split.gain == pytest.approx(best)
    assert split.side == 0
    members = set(np.flatnonzero(split.members))
    assert members in ({1, 2, 3}, {0, 4, 5, 6})


def test_no_split_leaves_too_few_frames() -> None:
    contexts, frames = data(frames=300)
    statistics = TreeStatistics.collect(PHONES, contexts, frames)
    assert best_split(*statistics.select_state(4, 2), find_questions(statistics), 1000.0) is None


def test_questions_find_phones_that_sound_alike() -> None:
    rng = np.random.default_rng(3)
    frames = 9000
    contexts = np.stack([rng.integers(0, PHONES, frames) for _ in range(3)] + [rng.integers(0, 3, frames)], axis=1)
    family = np.array([0, 1, 1, 1, 2, 2, 2])[contexts[:, 1]]
    x = np.eye(3)[family] * 6 + rng.standard_normal((frames, 3)) + 0.3 * contexts[:, 1:2]
    questions = {frozenset(np.flatnonzero(q)) for q in find_questions(TreeStatistics.collect(PHONES, contexts, x))}
    assert {frozenset({1, 2, 3}), frozenset({4, 5, 6})} <= questions
    assert {frozenset({phone}) for phone in range(PHONES)} <= questions


def test_grown_tree_finds_the_true_question_and_leaves_silence_whole() -> None:
    statistics = TreeStatistics.collect(PHONES, *data())
    tree = Tree.grow(statistics, num_senones=3 * PHONES + 18, min_frames=20)
    assert tree.num_senones == 39
    assert len({tree.senones(left, 0, right) for left in range(PHONES) for right in range(PHONES)}) == 1
    for centre in range(1, PHONES):
        inside = {tree.senones(left, centre, right) for left in (1, 2, 3) for right in range(PHONES)}
        outside = {tree.senones(left, centre, right) for left in (0, 4, 5, 6) for right in range(PHONES)}
        assert len(inside) == len(outside) == 1
        assert inside.isdisjoint(outside)
    every = {s for l, c, r in itertools.product(range(PHONES), repeat=3) for s in tree.senones(l, c, r)}
    assert every == set(range(39))


def test_total_gain_grows_with_leaves_and_ends_where_data_end() -> None:
    contexts, frames = data(frames=2000)
    statistics = TreeStatistics.collect(PHONES, contexts, frames)
    likelihoods = []
    for leaves in (21, 30, 45):
        tree = Tree.grow(statistics, num_senones=leaves, min_frames=10)
        senone = np.array([tree.senones(l, c, r)[s] for l, c, r, s in contexts.tolist()])
        likelihoods.append(sum(fitted(frames[senone == s]) for s in np.unique(senone)))
    assert likelihoods == sorted(likelihoods)
    assert Tree.grow(statistics, num_senones=10_000, min_frames=50).num_senones < 100


def test_too_few_senones_are_refused() -> None:
    with pytest.raises(SettingsError, match="at least 21"):
        Tree.grow(TreeStatistics.collect(PHONES, *data(frames=100)), num_senones=20)


def test_unseen_phone_keeps_senones_of_its_own() -> None:
    contexts, frames = data(frames=3000)
    seen = contexts[:, 1] != 6
    tree = Tree.grow(TreeStatistics.collect(PHONES, contexts[seen], frames[seen]), num_senones=30, min_frames=20)
    assert len(set(tree.senones(1, 6, 2))) == 3
    assert tree.senones(1, 6, 2) == tree.senones(0, 6, 5)


def test_files_and_pickles_give_the_same_tree(tmp_path: Path) -> None:
    tree = Tree.grow(TreeStatistics.collect(PHONES, *data()), num_senones=35, min_frames=20)
    tree.save(tmp_path / "tree.safetensors")
    for copy in (Tree.load(tmp_path / "tree.safetensors"), pickle.loads(pickle.dumps(tree))):
        assert copy.num_senones == 35
        assert copy.num_phones == PHONES
        for triple in itertools.product(range(PHONES), repeat=3):
            assert copy.senones(*triple) == tree.senones(*triple)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Tree.load(tmp_path / "none")
    (tmp_path / "text").write_text("not a tree")
    with pytest.raises(DataError, match="cannot be read"):
        Tree.load(tmp_path / "text")


def test_monophone_tree_has_three_senones_a_phone() -> None:
    tree = Tree.monophone(4)
    assert tree.num_senones == 12
    assert tree.senones(0, 2, 3) == tree.senones(1, 2, 1) == (6, 7, 8)
