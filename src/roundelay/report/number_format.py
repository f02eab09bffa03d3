"""How a report writes numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from roundelay.study.schema import Spread

THIN = "\u202f"


def number(value: float | None, digits: int = 4) -> str:
    """Write a number with ``digits`` significant digits and separated thousands; a dash for none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 10:
        return f"{value:.{max(digits - 2, 1)}e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    text = f"{value:,.{max(digits - 1 - exponent, 0)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace(",", THIN)


def count(value: float, noun: str) -> str:
    """Write a count with its noun: ``1 run``, ``12 runs``."""
    ending = "" if value == 1 else "es" if noun.endswith("s") else "s"
    return f"{number(value, 7)} {noun}{ending}"


def learners(number_of: int) -> str:
    """Write the number of learners."""
    return count(number_of, "learner")


def percent(value: float | None, digits: int = 3) -> str:
    """Write a share in percent."""
    return "–" if value is None else f"{number(100 * value, digits)} %"


def duration(value: float | None) -> str:
    """Write seconds in a suitable unit."""
    if value is None or not math.isfinite(value):
        return "–"
    for unit, seconds in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= seconds * (2 if seconds >= 60 else 1):
            return f"{number(value / seconds, 3)} {unit}"
    return f"{number(value / 1e-6, 3)} µs" if value else "0 s"


def size(value: float | None) -> str:
    """Write bytes in a suitable unit."""
    if value is None or not math.isfinite(value):
        return "–"
    for unit, own in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= own:
            return f"{number(value / own, 3)} {unit}"
    return f"{number(value, 3)} B"


def amount(name: str, value: float | None) -> str:
    """Write a score: errors in percent, others as a number."""
    return percent(value) if "error" in name else number(value)


def range_of(spread: Spread, name: str = "", *, unit: str = "") -> str:
    """Write a median, with its range in brackets if there are several seeds."""
    write: Callable[[float | None], str] = {"seconds": duration, "bytes": size}.get(unit, partial(amount, name))
    text = write(spread["median"])
    known = [value for value in spread["values"] if value is not None]
    if len(known) < 2 or spread["median"] is None:
        return text
    low, high = write(spread["low"]), write(spread["high"]) if spread["high"] is not None else "missed"
    return f"{text} [{low}, {high}]" if low != high else text
