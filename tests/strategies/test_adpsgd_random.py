"""The randomized ring by hand; that all draw the same one; how fast it mixes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from quadratic_task import scattered, walk
from roundelay.strategies import RandomADPSGD
from roundelay.strategies.topologies import RandomRing


def test_two_steps_by_hand() -> None:
    # Any ring of three learners is the ring of all: as in test_adpsgd, 1.5, 3, 4.5, then 3 less half of each
    path = walk(RandomADPSGD(seed=5), [3, 6, 9, 0, 0, 0], 3)
    assert [path.weights[learner][1] for learner in range(3)] == pytest.approx([2.25, 1.5, 0.75])


def test_two_steps_of_four_by_hand() -> None:
    # Half of the way to 2, 4, 6, 8: 1, 2, 3, 4.  In iteration 1 everyone mixes with all but the one opposite in the
    # ring: the mean of all is 2.5, so T w = (10 - opposite)/3; less half of g = w.
    order = [0]
    while len(order) < 4:
        nearby = RandomRing(5).neighbours(order[-1], 4, iteration=1)
        order.append(next(rank for rank in nearby if rank not in order))
    opposite = {rank: order[place - 2] for place, rank in enumerate(order)}
    path = walk(RandomADPSGD(seed=5), [2, 4, 6, 8, 0, 0, 0, 0], 4)
    for rank in range(4):
        assert path.weights[rank][1] == pytest.approx((10 - (opposite[rank] + 1)) / 3 - (rank + 1) / 2)


def test_every_iteration_has_another_ring() -> None:
    rings = {tuple(tuple(RandomRing(0).neighbours(rank, 8, k)) for rank in range(8)) for k in range(50)}
    assert len(rings) > 40


def test_mixes_as_fast_as_the_formula_says() -> None:
    # On deviations from the mean E|Tx|^2 / |x|^2 = (n/3 - 1)/(n - 1), whatever x and the ring; here of 16 learners.
    size, steps, ratios = 16, 9, []
    for seed in range(8):
        seen: dict[int, list[Tensor]] = {rank: [] for rank in range(size)}
        start = torch.randn(size, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        strategy = scattered(RandomADPSGD(seed=seed), lambda learner, start=start: start[learner.index])  # type: ignore[misc]  # a default
        walk(
            strategy,
            [0.0] * (size * steps),
            size,
            rate=0.0,
            task={"size": 64},
            watch=lambda training, seen=seen: seen[training.learner.index].append(training.learner.weights.clone()),  # type: ignore[misc]  # a default
        )
        spreads = [torch.stack([seen[rank][step] for rank in range(size)]).var(0).sum() for step in range(steps)]
        ratios += [float(after / before) for before, after in pairwise(spreads)]
    assert sum(ratios) / len(ratios) == pytest.approx((size / 3 - 1) / (size - 1), rel=0.1)
