"""Fewer numbers for the same picture: curves by bins that keep extremes, spans by a window, counts by bins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Curve = list[list[float]]
"""Points of x, with mean, minimum and maximum of the values in a bin."""


class Span(NamedTuple):
    """What a learner did from ``begin`` on."""

    kind: str
    begin: float
    seconds: float


class Window(NamedTuple):
    """The spans of all members between two times of a run; ``whole`` is the length of the run."""

    begin: float
    end: float
    whole: float
    spans: dict[str, list[Span]]


def significant(value: float, digits: int = 5) -> float:
    """Round to significant digits: a page does not show more."""
    return float(f"{value:.{digits}g}")


def bin_curve(xs: Sequence[float], ys: Sequence[float], most: int = 160) -> Curve:
    """Join neighbours until at most ``most`` points remain; each has mean, minimum and maximum."""
    size = max(1, math.ceil(len(ys) / most))
    curve = []
    for first in range(0, len(ys), size):
        part = [y for y in ys[first : first + size] if math.isfinite(y)]
        if part:
            x = xs[min(first + size, len(xs)) - 1]
            curve.append([significant(v) for v in (x, math.fsum(part) / len(part), min(part), max(part))])
    return curve


def histogram(counts: Mapping[float, int], bins: int = 40) -> list[tuple[float, float, int]]:
    """Count values in bins of equal width; integers get one bin each if ``bins`` allows."""
    values = sorted(value for value in counts if math.isfinite(value))
    if not values:
        return []
    low, high = values[0], values[-1]
    whole = all(value == int(value) for value in values) and high - low < bins
    width = 1.0 if whole else ((high - low) / bins or max(abs(low), 1e-12) / bins)
    start = low - 0.5 if whole else low
    tally: dict[int, int] = {}
    for value in values:
        index = int((value - start) / width) if whole else min(int((value - start) / width), bins - 1)
        tally[index] = tally.get(index, 0) + counts[value]
    return [(start + i * width, start + (i + 1) * width, count) for i, count in sorted(tally.items())]


def log_histogram(counts: Mapping[float, int], per_decade: int = 10) -> list[tuple[float, float, int]]:
    """Count values above zero in bins with a constant ratio; bins are equal for all data."""
    tally: dict[int, int] = {}
    for value, count in counts.items():
        if math.isfinite(value) and value > 0:
            index = math.floor(math.log10(value) * per_decade)
            tally[index] = tally.get(index, 0) + count
    return [(10 ** (i / per_decade), 10 ** ((i + 1) / per_decade), count) for i, count in sorted(tally.items())]


def select_window(spans: Mapping[str, Sequence[Span]], most: int, around: Iterable[float] = ()) -> Window:
    """Keep at most about ``most`` spans: all of them, or those of one window of time.

    The window begins with the run, or has the first of the times ``around`` in its middle.
    """
    all_spans = [span for own in spans.values() for span in own]
    whole = max((span.begin + span.seconds for span in all_spans), default=0.0)
    if len(all_spans) <= most:
        return Window(0.0, whole, whole, {member: list(own) for member, own in spans.items()})
    middle = min((time for time in around if time <= whole), default=0.0)
    ordered = sorted(all_spans, key=lambda span: abs(span.begin - middle))[:most]
    begin = min(span.begin for span in ordered)
    end = max(span.begin for span in ordered)
    inside = {member: [span for span in own if begin <= span.begin <= end] for member, own in spans.items()}
    return Window(begin, end, whole, inside)
