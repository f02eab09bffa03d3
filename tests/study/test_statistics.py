"""Spreads, trials and certainty of times."""

from __future__ import annotations

import pytest

from roundelay.study.statistics import chance, compare_times, spread


def test_spreads_count_misses_as_larger_than_anything() -> None:
    assert spread([3.0, None, 1.0])["median"] == 3.0
    assert spread([3.0, None, 1.0])["high"] is None
    assert spread([None, None, 1.0])["median"] is None
    assert spread([2.0, 1.0])["median"] == 1.5
    assert spread([2.0, None])["median"] is None
    assert spread([])["median"] is None


def test_certainty() -> None:
    assert compare_times(spread([1.0, 1.1, 1.2]), spread([1.3, 1.4, None])) == "clear"
    assert compare_times(spread([1.0, 1.2, 1.4]), spread([1.1, 1.3, 1.5])) == "likely"
    assert compare_times(spread([1.0, 1.6, 1.4]), spread([1.1, 1.3, 1.5])) == "open"
    assert compare_times(spread([1.0]), spread([2.0])) == "open"
    assert chance([1, 2, 3], [4, 5, 6]) == pytest.approx(1 / 20)
    assert chance([1, 1], [1, 1]) == 1.0
    assert chance([1] * 9, [2] * 9) is None
