"""A target for a score, the evaluations of a run, and the first evaluation that reaches the target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict


class Target(TypedDict):
    """The goal, fixed before any run: ``score`` at or below ``value`` on the dev set."""

    score: str
    value: float


class Point(TypedDict):
    """An evaluation of a run."""

    frames: float
    minibatch: int
    seconds: float
    scores: dict[str, float]


def first_reached(points: Iterable[Point], target: Target) -> Point | None:
    """Return the first of ``points`` with a score at or below the target, or ``None``."""
    return next((point for point in points if point["scores"].get(target["score"], math.inf) <= target["value"]), None)
