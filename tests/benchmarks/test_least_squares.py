"""Least squares for positive numbers."""

from __future__ import annotations

import pytest

from least_squares import fit
from roundelay.errors import DataError


def test_numbers_are_found_from_afar() -> None:
    def line(at: dict[str, float]) -> list[float]:
        return [at["a"] + at["b"] / n for n in (1, 2, 4, 8)]

    found = fit(lambda at: line(dict(at)), line({"a": 3.0, "b": 500.0}), {"a": 1.0, "b": 10.0})
    assert found == pytest.approx({"a": 3.0, "b": 500.0}, rel=1e-4)


def test_what_has_no_effect_goes_to_nothing() -> None:
    found = fit(lambda at: [at["a"] + n * at["b"] for n in (1, 2, 3)], [5.0, 5.0, 5.0], {"a": 1.0, "b": 1.0})
    assert found["a"] == pytest.approx(5.0, rel=1e-3)
    assert found["b"] < 1e-2


def test_too_few_measurements() -> None:
    with pytest.raises(DataError, match="1 measurements cannot determine 2 numbers: a, b"):
        fit(lambda at: [1.0], [1.0], {"a": 1.0, "b": 1.0})
