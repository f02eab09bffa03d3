"""Scores and speeds in words."""

from __future__ import annotations

from roundelay.cli.training_display import figures, say_speed


def test_errors_are_in_percent() -> None:
    scores = {"loss": 1.23456, "error": 0.0512, "distance": 2.0}
    assert figures(scores) == ["loss 1.2346", "error 5.12 %", "consensus distance 2.0000"]


def test_speeds_are_short() -> None:
    assert [say_speed(speed) for speed in (12.4, 999.0, 31_240.0)] == ["12 frames/s", "999 frames/s", "31.2 k frames/s"]
