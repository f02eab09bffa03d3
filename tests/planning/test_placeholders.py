"""Placeholders have the sizes of what they stand for, and no numbers."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest
import torch

from roundelay.planning.placeholders import LAYERS, PlaceholderLearner, PlaceholderTask, SizeOnlyTensor, no_mean


def test_a_placeholder_has_a_size() -> None:
    x = SizeOnlyTensor(10)
    assert (x.numel(), len(x), x.shape, x.nbytes, x.element_size()) == (10, 10, (10,), 40, 4)
    assert x[2:6].numel() == 4
    assert x[:] is x
    assert x[8:20].numel() == 2
    assert x.new_zeros(3).numel() == 3


def test_arithmetic_costs_nothing() -> None:
    x, y = SizeOnlyTensor(10), SizeOnlyTensor(10)
    assert x.clone().add_(y, alpha=0.5).mul_(2) is x
    assert (2 * (x - y) / 3) is x
    assert cast("Any", torch.sub(cast("Any", x), cast("Any", y))) is x
    assert cast("Any", torch.cat(cast("Any", [x, y]))).numel() == 20
    assert float(x) == 0.0
    assert no_mean([], []) is None


@pytest.mark.parametrize("pieces", [1, 3, 7])
def test_parts_of_a_learner_cover_it(pieces: int) -> None:
    learner = PlaceholderLearner(1000)
    parts = learner.even_parts(pieces)
    assert len(parts) == pieces
    assert [parts[0].start, parts[-1].stop] == [0, 1000]
    assert all(a.stop == b.start for a, b in itertools.pairwise(parts))


def test_buckets_are_no_smaller_than_layers_and_come_from_the_end() -> None:
    learner = PlaceholderLearner(1000)
    assert len(learner.buckets(1)) == LAYERS
    assert len(learner.buckets(2000)) == 2
    assert learner.buckets(10**9) == [slice(0, 1000)]
    assert learner.buckets(2000)[0].stop == 1000


def test_training_changes_nothing() -> None:
    learner, task = PlaceholderLearner(1000), PlaceholderTask(per_epoch=5, frames=64)
    learner.take_snapshot()
    assert task.gradient(learner, task.load(0, 0)) == 0.0  # type: ignore[func-returns-value]  # as a loop calls it
    learner.collect_grad()
    learner.descend()
    assert learner.weights.numel() == learner.grad.numel() == 1000
    assert (task.minibatches_per_epoch, task.nominal_frames, task.held_out_minibatches) == (5, 64, 0)
