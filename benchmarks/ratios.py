"""Measure ratios of two ways to do the same thing, in turn in one run."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable


def interleave(ways: dict[str, Callable[[], None]], rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Call each way once per round, in changing order; return the seconds of each call after the warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + warmup):
        names = list(ways)
        random.Random(turn).shuffle(names)
        for name in names:
            begin = time.perf_counter()
            ways[name]()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratio(base: list[float], ours: list[float]) -> dict[str, float]:
    """Return our speed divided by that of ``base``, by medians, with a 95 % bootstrap interval."""
    draw = random.Random(0)
    point = statistics.median(base) / statistics.median(ours)
    boot = sorted(
        statistics.median(draw.choices(base, k=len(base))) / statistics.median(draw.choices(ours, k=len(ours)))
        for _ in range(1000)
    )
    return {"ratio": round(point, 3), "low": round(boot[25], 3), "high": round(boot[975], 3)}


def show(what: str, found: dict[str, float], goal: float | None = None) -> None:
    """Print one line."""
    wanted = f"  goal {goal}" if goal is not None else ""
    print(f"{what:55s} {found['ratio']:.3f}  ({found['low']:.3f} to {found['high']:.3f}){wanted}", flush=True)


def dump(results: dict[str, dict[str, float]]) -> None:
    """Print all as one JSON object."""
    print(json.dumps(results))
