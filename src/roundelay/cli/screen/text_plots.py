"""Curves and bars of characters, with two by four dots in each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a Braille character, by row and column
BLANK = 0x2800
DECADE = 8.0  # times
EIGHTHS = " ▏▎▍▌▋▊▉█"


def thin(points: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """Average neighbouring points until at most ``count`` remain; points that are not finite are dropped."""
    points = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if len(points) <= count:
        return points
    edges = [len(points) * k // count for k in range(count + 1)]
    parts = [points[a:b] for a, b in itertools.pairwise(edges)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def curve(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """Draw points from left to right, joined by lines, with the highest and the lowest value beside them.

    Values whose ratio is more than `DECADE` are drawn on a logarithmic scale: else the end of a loss curve is flat.
    """
    points = thin(points, 2 * width)
    if not points:
        return [""] * height
    smallest, largest = min(y for _, y in points), max(y for _, y in points)
    logarithmic = smallest > 0 and largest > DECADE * smallest
    if logarithmic:
        points = [(x, math.log(y)) for x, y in points]
    (left, right), (low, high) = _range([x for x, _ in points]), _range([y for _, y in points])
    cells = [[BLANK] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for x, y in points:
        column = round((x - left) / (right - left) * (2 * width - 1))
        row = round((high - y) / (high - low) * (4 * height - 1))
        for c, r in _line(before or (column, row), (column, row)):
            cells[r // 4][c // 2] |= DOTS[r % 4][c % 2]
        before = column, row
    labels = [f"{largest:.3g}", *["log" if logarithmic else ""] * (height - 2), f"{smallest:.3g}"]
    room = max(map(len, labels))
    return [
        f"{label:>{room}} │{''.join(map(chr, line))}" for label, line in zip(labels, cells, strict=True)
    ]  # fmt: skip


def bar(share: float, width: int) -> str:
    """Draw a bar that fills ``share`` of the width."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * k / steps), round(start[1] + (end[1] - start[1]) * k / steps))
        for k in range(steps + 1)
    ]
