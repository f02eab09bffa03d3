"""Curves of the consensus distance, on a terminal or as a figure; both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Curves = Mapping[str, Sequence[float]]
"""By name: the distance after 0, 1, 2, … iterations."""

FLOOR = 0.005  # smaller distances are drawn here
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKS = "ox+*#@%&"


def terminal(curves: Curves, *, width: int = 64, height: int = 12) -> str:
    """Draw ``curves`` with characters, one mark per curve."""
    last = _last(curves)
    grid = [[" "] * width for _ in range(height)]
    for (_, curve), mark in zip(curves.items(), MARKS, strict=False):
        for column in range(width):
            iteration = round(last ** (column / (width - 1)))
            if iteration < len(curve):
                row = round(_down(curve[iteration]) * (height - 1))
                grid[row][column] = mark if grid[row][column] == " " else "."
    labels = {0: "100 %", round(_down(0.1) * (height - 1)): "10 %", round(_down(0.01) * (height - 1)): "1 %"}
    lines = [f"{labels.get(k, ''):>6} |{''.join(row).rstrip()}" for k, row in enumerate(grid)]
    lines.append(f"{'':>6} +{'-' * width}")
    lines.append(f"{'':>6}  1{'iterations':^{width - 2 - len(str(last))}}{last}")
    lines.append(f"{'':>6}  " + "  ".join(f"{mark} {name}" for name, mark in zip(curves, MARKS, strict=False)))
    return "\n".join(lines)


def svg(curves: Curves, *, title: str) -> str:
    """Draw ``curves`` as SVG."""
    last, left, top, wide, high = _last(curves), 60, 40, 480, 280
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + wide + 190} {top + high + 60}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for share in (1.0, 0.1, 0.01):
        y = top + high * _down(share)
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for k in range(int(math.log10(last)) + 1):
        x = left + wide * math.log(10**k) / math.log(last)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + high}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{top + high + 18}" text-anchor="middle">{10**k}</text>')
    parts.append(f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle">iterations</text>')
    for k, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[k % len(COLOURS)]
        points = " ".join(
            f"{left + wide * math.log(i) / math.log(last):.1f},{top + high * _down(curve[i]):.1f}"
            for i in range(1, min(last + 1, len(curve)))
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + 14 + 20 * k
        parts.append(f'<rect x="{left + wide + 16}" y="{y - 9}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{left + wide + 34}" y="{y + 2}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _last(curves: Curves) -> int:
    """Return the last iteration to show: the first at which the slowest curve is below 1 %."""
    slowest = max((next((k for k, d in enumerate(c) if d < 0.01), len(c) - 1) for c in curves.values()), default=2)
    return max(4, slowest)


def _down(distance: float) -> float:
    """Return the position of a distance from the top, 0 to 1."""
    return math.log(max(distance, FLOOR)) / math.log(FLOOR) if distance < 1 else 0.0
