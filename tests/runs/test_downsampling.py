from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundelay.runs.downsampling import Span, bin_curve, histogram, log_histogram, select_window, significant

numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=400), st.integers(1, 50))
def test_a_thinned_curve_keeps_its_extremes(ys: list[float], most: int) -> None:
    curve = bin_curve([float(i) for i in range(len(ys))], ys, most)
    assert len(curve) <= most
    assert min(point[2] for point in curve) == significant(min(ys))
    assert max(point[3] for point in curve) == significant(max(ys))
    slack = 1e-4 * max(map(abs, ys)) + 1e-12
    assert all(low - slack <= mean <= high + slack for _, mean, low, high in curve)


def test_a_curve_is_thinned_around_what_is_not_finite() -> None:
    assert bin_curve([1, 2, 3], [1.0, math.nan, math.inf]) == [[1.0, 1.0, 1.0, 1.0]]


@given(st.dictionaries(st.one_of(st.integers(-20, 20).map(float), numbers), st.integers(1, 9), min_size=1, max_size=60))
def test_a_histogram_counts_everything_once(counts: dict[float, int]) -> None:
    bins = histogram(counts)
    assert sum(count for _, _, count in bins) == sum(counts.values())
    assert len(bins) <= 41
    assert all(low < high for low, high, _ in bins)


def test_whole_numbers_have_a_bin_each() -> None:
    assert histogram(Counter([0.0, 1.0, 1.0, 3.0])) == [(-0.5, 0.5, 1), (0.5, 1.5, 2), (2.5, 3.5, 1)]


def test_logarithmic_bins_hold_what_is_in_them() -> None:
    (low, high, count), *more = log_histogram({0.5: 2, 0.0: 7, math.inf: 1})
    assert low <= 0.5 < high
    assert count == 2
    assert not more


def test_a_window_keeps_all_where_that_fits() -> None:
    spans = {"learner 0": [Span("compute", 0.0, 1.0), Span("wait", 1.0, 1.0)]}
    assert select_window(spans, 2) == (0.0, 2.0, 2.0, spans)


@pytest.mark.parametrize(("around", "begins"), [((), 0.0), ((50.0,), 46.0)])
def test_a_window_is_at_the_beginning_or_around_the_first_fault(around: tuple[float, ...], begins: float) -> None:
    spans = {f"learner {n}": [Span("compute", float(t), 1.0) for t in range(100)] for n in range(2)}
    window = select_window(spans, 18, around)
    assert window.begin == begins
    assert window.whole == 100.0
    assert sum(map(len, window.spans.values())) <= 20
    assert window.end - window.begin == 8.0
