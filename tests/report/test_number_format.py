from __future__ import annotations

import math

import pytest

from roundelay.report.number_format import THIN, amount, count, duration, number, percent, range_of, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (0, "0"),
        (12, "12"),
        (0.123456, "0.1235"),
        (51200, f"51{THIN}200"),
        (1234567, f"1{THIN}234{THIN}567"),
        (1e30, "1.00e30"),
        (2.5e-7, "2.50e-7"),
        (-0.05, "-0.05"),
    ],
)
def test_numbers_are_short_and_clear(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (2e-5, "20 µs"),
        (0.0321, "32.1 ms"),
        (4.04, "4.04 s"),
        (90, "90 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
    ],
)
def test_durations_have_the_unit_that_suits_them(value: float | None, text: str) -> None:
    assert duration(value) == text


def test_bytes_and_shares_and_counts() -> None:
    assert size(20_395_736) == "20.4 MB"
    assert size(12) == "12 B"
    assert percent(0.0425) == "4.25 %"
    assert amount("error", 0.0425) == "4.25 %"
    assert amount("loss", 0.0425) == "0.0425"
    assert count(1, "run") == "1 run"
    assert count(12, "run") == "12 runs"


def test_a_range_says_that_a_seed_missed() -> None:
    assert range_of({"median": 2.0, "low": 1.0, "high": None, "values": [1.0, 2.0, None]}) == "2 [1, missed]"
    assert range_of({"median": 2.0, "low": 2.0, "high": 2.0, "values": [2.0]}) == "2"
