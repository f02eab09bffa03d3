"""Scores and speeds as the command line writes them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["figures", "say_speed"]

NAMES = {"distance": "consensus distance"}


def figures(scores: Mapping[str, float]) -> list[str]:
    """Write each score with its name; an error is a share, written in percent."""
    return [
        f"{name} {100 * value:.2f} %" if name == "error" else f"{NAMES.get(name, name)} {value:.4f}"
        for name, value in scores.items()
    ]


def say_speed(frames_per_second: float) -> str:
    """Write a speed in short: ``31.2 k frames/s``."""
    number = f"{frames_per_second / 1000:.1f} k" if frames_per_second >= 1000 else f"{frames_per_second:.0f}"
    return f"{number} frames/s"
