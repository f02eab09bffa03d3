"""Figures in words: how numbers are written everywhere in a report, and the short answer of runs that are no study."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from roundelay.runs.history import Details
from roundelay.runs.target import Target
from roundelay.study.schema import Answer, Spread, StrategyRow

__all__ = ["amount", "answer_of_runs", "count", "duration", "learners", "number", "percent", "range_of", "size"]

THIN = "\u202f"


def number(value: float | None, digits: int = 4) -> str:
    """Write a number with so many significant digits, thousands apart; a dash for none."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 7:
        return f"{value:.{max(digits - 2, 1)}e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    text = f"{value:,.{max(digits - 1 - exponent, 0)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace(",", THIN)


def count(value: float, what: str) -> str:
    """Write how many there are of what: ``1 run``, ``12 runs``."""
    return (
        f"{number(value, 7)} {what}"
        if value == 1
        else f"{number(value, 7)} {what}{'es' if what.endswith('s') else 's'}"
    )


def learners(how_many: int) -> str:
    """Write how many learners there are."""
    return count(how_many, "learner")


def percent(value: float | None, digits: int = 3) -> str:
    """Write a share in percent."""
    return "–" if value is None else f"{number(100 * value, digits)} %"


def duration(value: float | None) -> str:
    """Write seconds in the unit that suits them."""
    if value is None or not math.isfinite(value):
        return "–"
    for unit, seconds in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= seconds * (2 if seconds >= 60 else 1):
            return f"{number(value / seconds, 3)} {unit}"
    return f"{number(value / 1e-6, 3)} µs" if value else "0 s"


def size(value: float | None) -> str:
    """Write bytes in the unit that suits them."""
    if value is None or not math.isfinite(value):
        return "–"
    for unit, own in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= own:
            return f"{number(value / own, 3)} {unit}"
    return f"{number(value, 3)} B"


def amount(name: str, value: float | None) -> str:
    """Write a score: errors in percent, anything else as a number."""
    return percent(value) if "error" in name else number(value)


def range_of(spread: Spread, name: str = "", *, unit: str = "") -> str:
    """Write a median, with its range in brackets where several seeds were run."""
    write: Callable[[float | None], str] = {"seconds": duration, "bytes": size}.get(unit, partial(amount, name))
    text = write(spread["median"])
    known = [value for value in spread["values"] if value is not None]
    if len(known) < 2 or spread["median"] is None:
        return text
    low, high = write(spread["low"]), write(spread["high"]) if spread["high"] is not None else "missed"
    return f"{text} [{low}, {high}]" if low != high else text


def answer_of_runs(rows: Sequence[StrategyRow], runs: dict[str, Details], target: Target | None) -> Answer:
    """Say what one run did, or how several compare; no ranking, since nothing made them comparable."""
    good = [row for row in rows if row["scores"]]
    answer = Answer(
        headline="Nothing was trained to the end here: no run has a score.",
        sentences=[],
        changes=[],
        certainty="none",
        winner=None,
        runner_up=None,
        ratio=None,
    )
    if len(rows) == 1 and len(runs) == 1 and good:
        answer["headline"], answer["sentences"] = _one(rows[0], next(iter(runs.values())), target)
    elif good:
        answer["headline"], answer["sentences"] = _several(good)
        answer["changes"] = [
            "More seeds, an equal budget, and a learning rate chosen for each strategy: 'roundelay compare' does that."
        ]
    lost = sum(row["statuses"].get(status, 0) for row in rows for status in ("failed", "diverged", "interrupted"))
    if lost:
        answer["sentences"].append(f"{count(lost, 'run')} did not finish; see all runs below.")
    return answer


def _scored(row: StrategyRow) -> str:
    said = [("loss", "held-out loss"), ("error", "frame error"), ("frame_error", "frame error")]
    parts = [f"{words} {amount(name, row['scores'][name]['median'])}" for name, words in said if name in row["scores"]]
    if row["wer"] is not None:
        parts.append(f"word error rate {number(row['wer']['median'])} %")
    return ", ".join(parts)


def _one(row: StrategyRow, details: Details, target: Target | None) -> tuple[str, list[str]]:
    frames, seconds = details.frames, row["seconds"]["median"]
    headline = (
        f"{row['strategy']} with {learners(row['learners'])}: {_scored(row)} after {number(frames, 7)} frames "
        f"in {duration(seconds)} of {row['clock']} time."
    )
    sentences = []
    if shares := details.shares():
        parts = [f"{percent(shares.get(kind, 0.0), 2)} {words}" for kind, words in
                 (("compute", "computing"), ("communicate", "communicating"), ("wait", "waiting"))]  # fmt: skip
        sentences.append(f"Its learners spent {parts[0]}, {parts[1]} and {parts[2]}.")
    if details.staleness:
        mean = math.fsum(k * n for k, n in details.staleness.items()) / details.staleness.total()
        sentences.append(
            f"Gradients were {number(mean, 3)} steps stale on average, {max(details.staleness):g} at most."
        )
    if (sent := details.total_bytes) and frames:
        sentences.append(f"{size(sent)} went over the wire, {size(sent / frames)} a frame.")
    if target is not None:
        reached = row["time"]["median"]
        wanted = f"The target, {target['score']} at most {amount(target['score'], target['value'])},"
        sentences.append(f"{wanted} was {f'reached after {duration(reached)}' if reached else 'not reached'}.")
    return headline, sentences


def _several(rows: Sequence[StrategyRow]) -> tuple[str, list[str]]:
    by_loss = [row for row in rows if row["scores"].get("loss") and row["scores"]["loss"]["median"] is not None]
    best = min(by_loss or rows, key=lambda row: row["scores"]["loss"]["median"] or math.inf if by_loss else 0.0)
    headline = (
        f"{best['strategy']} with {learners(best['learners'])} ended best: {_scored(best)} "
        f"after {duration(best['seconds']['median'])} of {best['clock']} time."
    )
    sentences = []
    for clock in ("virtual", "wall"):
        own = [row for row in rows if row["clock"] == clock and row["frames_per_second"]["median"]]
        if len(own) > 1:
            fast = max(own, key=lambda row: row["frames_per_second"]["median"] or 0.0)
            rate = number(fast["frames_per_second"]["median"], 3)
            member = f"{fast['strategy']} with {learners(fast['learners'])}"
            sentences.append(f"By {clock} time, {member} went fastest: {rate} frames a second.")
    if all(len(row["cells"]) == 1 for row in rows):
        sentences.append("There is one run of each, so chance may have had its part in every difference.")
    return headline, sentences
