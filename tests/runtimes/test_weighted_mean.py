"""The one way to compute a mean."""

from __future__ import annotations

import math

import pytest
import torch

from roundelay.runtimes.weighted_mean import divide, mean_of, scale

NAN = torch.full((2,), math.nan)


def test_a_weight_of_zero_leaves_out_even_what_is_not_finite() -> None:
    assert scale(NAN, 0.0).tolist() == [0.0, 0.0]
    mean = mean_of([NAN, torch.tensor([4.0, 8.0])], [0.0, 2.0])
    assert mean is not None
    assert mean.tolist() == [4.0, 8.0]


@pytest.mark.parametrize(("weights", "expected"), [([1, 1, 1], 4.0), ([1, 0, 3], 6.25), ([0.5, 0.5, 0], 2.0)])
def test_a_mean_by_hand(weights: list[float], expected: float) -> None:
    mean = mean_of([torch.full((2,), value) for value in (1.0, 3.0, 8.0)], weights)
    assert mean is not None
    assert mean.tolist() == pytest.approx([expected] * 2)


def test_without_weights_there_is_no_mean() -> None:
    assert mean_of([torch.ones(2)], [0.0]) is None


def test_what_is_given_stays_as_it_is() -> None:
    xs = [torch.ones(2), torch.full((2,), 3.0)]
    for given in (xs, xs[:1]):
        mean = mean_of(given, [1.0] * len(given))
        assert mean is not None
        mean.zero_()
    assert [x.tolist() for x in xs] == [[1.0, 1.0], [3.0, 3.0]]


def test_sums_are_taken_in_rank_order() -> None:
    """In another order the small numbers would be lost, or not: runtimes agree only if all take the same."""
    xs = [torch.tensor([value]) for value in (1e8, 1.0, 1.0, -1e8)]
    total = ((xs[0] + xs[1]) + xs[2]) + xs[3]
    assert mean_of(xs, [1.0] * 4) == divide(total, 4.0)
