"""Fewer numbers that show the same: curves by bins that keep their extremes, spans by a window, counts by bins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Span", "Window", "bin_curve", "cut", "histogram", "log_histogram", "significant"]

Curve = list[list[float]]
"""Points of x, the mean, the smallest and the largest of what was there."""


class Span(NamedTuple):
    """What a learner did from one moment to another."""

    kind: str
    begin: float
    seconds: float


class Window(NamedTuple):
    """The spans of everyone between two moments, of a run that may be longer."""

    begin: float
    end: float
    whole: float
    spans: dict[str, list[Span]]


def significant(value: float, digits: int = 5) -> float:
    """Round to so many significant digits: what a page does not show it need not carry."""
    return float(f"{value:.{digits}g}")


def bin_curve(xs: Sequence[float], ys: Sequence[float], most: int = 160) -> Curve:
    """Join neighbours until at most ``most`` points are left; each keeps its mean and its extremes."""
    size = max(1, math.ceil(len(ys) / most))
    curve = []
    for first in range(0, len(ys), size):
        part = [y for y in ys[first : first + size] if math.isfinite(y)]
        if part:
            x = xs[min(first + size, len(xs)) - 1]
            curve.append([significant(v) for v in (x, math.fsum(part) / len(part), min(part), max(part))])
    return curve


def histogram(counts: Mapping[float, int], bins: int = 40) -> list[tuple[float, float, int]]:
    """Count values in bins of equal width; whole numbers get a bin each where they fit."""
    values = sorted(value for value in counts if math.isfinite(value))
    if not values:
        return []
    low, high = values[0], values[-1]
    whole = all(value == int(value) for value in values) and high - low < bins
    width = 1.0 if whole else ((high - low) / bins or max(abs(low), 1e-12) / bins)
    start = low - 0.5 if whole else low
    tally: dict[int, int] = {}
    for value in values:
        place = int((value - start) / width) if whole else min(int((value - start) / width), bins - 1)
        tally[place] = tally.get(place, 0) + counts[value]
    return [(start + i * width, start + (i + 1) * width, count) for i, count in sorted(tally.items())]


def log_histogram(counts: Mapping[float, int], per_decade: int = 10) -> list[tuple[float, float, int]]:
    """Count what is above zero in bins whose ends have one ratio, the same for whatever is counted."""
    tally: dict[int, int] = {}
    for value, count in counts.items():
        if math.isfinite(value) and value > 0:
            place = math.floor(math.log10(value) * per_decade)
            tally[place] = tally.get(place, 0) + count
    return [(10 ** (i / per_decade), 10 ** ((i + 1) / per_decade), count) for i, count in sorted(tally.items())]


def cut(spans: Mapping[str, Sequence[Span]], most: int, around: Iterable[float] = ()) -> Window:
    """Keep at most about ``most`` spans: all of them, or those of one stretch of time.

    The stretch begins with the run, or has the first of the moments ``around`` in its middle.
    """
    everyone = [span for own in spans.values() for span in own]
    whole = max((span.begin + span.seconds for span in everyone), default=0.0)
    if len(everyone) <= most:
        return Window(0.0, whole, whole, {member: list(own) for member, own in spans.items()})
    middle = min((moment for moment in around if moment <= whole), default=0.0)
    ordered = sorted(everyone, key=lambda span: abs(span.begin - middle))[:most]
    begin = min(span.begin for span in ordered)
    end = max(span.begin for span in ordered)
    inside = {member: [span for span in own if begin <= span.begin <= end] for member, own in spans.items()}
    return Window(begin, end, whole, inside)
