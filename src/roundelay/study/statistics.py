"""Values over seeds, and how certain it is that one strategy is faster than another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from roundelay.runs.target import Point
from roundelay.study.schema import Certainty, Spread

FEWEST = 3  # seeds for which ranges are used
LAST = 3  # evaluations by which a trial is judged: a single one varies by chance


def number_or_inf(value: float | None) -> float:
    """Return a value; a miss, ``None``, is infinite."""
    return math.inf if value is None else value


def choose_rate(scores: Mapping[float, float | None]) -> float:
    """Return the rate with the best score; the lowest rate if all trials have failed."""
    known = [(score, rate) for rate, score in scores.items() if score is not None]
    return min(known)[1] if known else min(scores)


def spread(values: Sequence[float | None]) -> Spread:
    """Return median and range; ``None``, a miss, is larger than any number."""
    ordered = sorted(map(number_or_inf, values))
    if not ordered:
        return {"median": None, "low": None, "high": None, "values": []}
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    low, median, high = (value if math.isfinite(value) else None for value in (ordered[0], middle, ordered[-1]))
    return {"median": median, "low": low, "high": high, "values": list(values)}


def settled(points: Sequence[Point], score: str, last: int = LAST) -> float | None:
    """Return the mean of a score over the ``last`` evaluations, but at most half of all."""
    values = [point["scores"][score] for point in points if score in point["scores"]]
    if not values:
        return None
    end = values[-max(1, min(last, len(values) // 2)) :]
    return math.fsum(end) / len(end)


def better(one: float | None, other: float | None) -> bool:
    """Return whether ``one`` is less than ``other``; a miss counts as infinite."""
    return number_or_inf(one) < number_or_inf(other)


def compare_times(first: Spread, second: Spread) -> Certainty:
    """Return how certain it is that ``first`` is below ``second``."""
    pairs = list(zip(first["values"], second["values"], strict=False))
    if len(pairs) < 2:
        return "open"
    apart = first["high"] is not None and (second["low"] is None or first["high"] < second["low"])
    if apart and len(pairs) >= FEWEST:
        return "clear"
    wins = sum(better(one, other) for one, other in pairs)
    return "likely" if apart or (wins == len(pairs) and len(pairs) >= FEWEST) else "open"


def chance(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
    """Return the probability that a random assignment puts ``first`` as far below ``second`` (Mann-Whitney)."""
    if not first or not second or len(first) + len(second) > 16:
        return None
    values = [*map(number_or_inf, [*first, *second])]
    seen = _wins(values, range(len(first)))
    deals = list(itertools.combinations(range(len(values)), len(first)))
    return sum(_wins(values, deal) >= seen for deal in deals) / len(deals)


def _wins(values: Sequence[float], chosen: Sequence[int]) -> float:
    others = set(range(len(values))) - set(chosen)
    return sum((values[i] < values[j]) + 0.5 * (values[i] == values[j]) for i in chosen for j in others)
