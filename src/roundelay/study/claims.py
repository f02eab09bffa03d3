"""A claim that a study tries: what must be seen, written in the study's file before it runs, and the verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from roundelay.config import Count, Settings
from roundelay.errors import SettingsError

Outcome = Mapping[str, Any]
"""What ``cell.json`` says of a run."""
Verdict = Literal["holds", "in part", "does not hold here", "not run yet"]


@dataclass(frozen=True)
class Row(Settings):
    """The runs of a study that differ only by seed."""

    strategy: str
    """The label of the strategy."""
    learners: Count
    model: str = ""
    cluster: str = ""

    def __str__(self) -> str:
        """Name the row as a page does."""
        more = [f"{self.learners} learner{'s' * (self.learners > 1)}", self.model, self.cluster]
        return f"`{self.strategy}`, {', '.join(word for word in more if word)}"


@dataclass(frozen=True)
class Quotient(Settings):
    """Two rows, of which the first is divided by the second."""

    of: Row
    than: Row


@dataclass(frozen=True)
class Check(Settings):
    """One thing that must be seen: a figure of one row divided by that of another, seed by seed; the median counts."""

    of: Row
    than: Row
    what: str = "loss"
    """A score at the end (loss, error), wer, seconds, or reached (seconds to the target); lower is better.

    ``spread`` is the range of the loss over seeds.  ``lost`` is the number of runs that diverged or failed; it is
    subtracted, not divided."""
    at_most: float | None = None
    at_least: float | None = None
    versus: Quotient | None = None
    """Divide by the same quotient of these: how much more something matters here than there."""
    says: str = ""
    """In words."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_most is None and self.at_least is None:
            raise SettingsError("a check needs at_most or at_least")


@dataclass(frozen=True)
class PaperClaim(Settings):
    """A claim of a paper, and by what it is judged; the tables of a study are in the same file."""

    says: str
    """The claim, in a sentence."""
    source: str
    hypothesis: str
    """What is expected here, and why."""
    rule: str
    """What must be seen for which verdict, in words; `checks` say the same in figures."""
    checks: list[Check] = field(default_factory=list)
    limits: str = ""
    """What the study cannot show."""


@dataclass(frozen=True)
class CheckResult:
    """What was seen of a check."""

    check: Check
    median: float | None
    """``None`` if a run is missing, or if both rows were lost; in that case the check has not passed."""
    low: float | None = None
    high: float | None = None
    passed: bool | None = None


def judge(claim: PaperClaim, outcomes: Sequence[Outcome]) -> tuple[Verdict, list[CheckResult]]:
    """Return the verdict by the claim's checks: all, some or none of them passed; runs may be missing."""
    results = [_look(check, outcomes) for check in claim.checks]
    if not results or any(result.passed is None for result in results):
        return "not run yet", results
    passed = sum(bool(result.passed) for result in results)
    return ("holds" if passed == len(results) else "in part" if passed else "does not hold here"), results


def _look(check: Check, outcomes: Sequence[Outcome]) -> CheckResult:
    found = _quotients(check.what, Quotient(check.of, check.than), outcomes)
    if check.versus is not None:
        other = _quotients(check.what, check.versus, outcomes)
        found = {seed: _divide(found[seed], other[seed]) for seed in found.keys() & other.keys()}
    if not found:
        return CheckResult(check, None)
    if all(map(math.isnan, found.values())):
        return CheckResult(check, None, passed=False)  # two lost rows show nothing
    values = [1.0 if math.isnan(value) else value for value in found.values()]  # lost with one seed: equal
    median = statistics.median(values)
    above = check.at_least is None or median >= check.at_least
    below = check.at_most is None or median <= check.at_most
    return CheckResult(check, median, min(values), max(values), passed=above and below)


def _quotients(what: str, rows: Quotient, outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Return the quotient for each seed that both rows have; for a figure of all seeds, as that of seed 0."""
    first, second = (_of_row(row, outcomes) for row in (rows.of, rows.than))
    if not first or not second:
        return {}
    if what == "lost":
        lost = [sum(each["status"] != "done" for each in row.values()) for row in (first, second)]
        return {0: float(lost[0] - lost[1])}
    if what == "spread":
        ranges = []
        for row in (first, second):
            values = [figure(each, "loss") for each in row.values()]
            ranges.append(max(values) - min(values) if all(map(math.isfinite, values)) else math.inf)
        return {0: _divide(*ranges)}
    both = sorted(first.keys() & second.keys())
    return {seed: _divide(figure(first[seed], what), figure(second[seed], what)) for seed in both}


def _of_row(row: Row, outcomes: Sequence[Outcome]) -> dict[int, Outcome]:
    wanted = (row.strategy, row.learners, row.model, row.cluster)
    return {
        int(each["seed"]): each
        for each in outcomes
        if not each["trial"] and (each["strategy"], each["learners"], each["model"], each["cluster"]) == wanted
    }


def figure(outcome: Outcome, what: str) -> float:
    """Return a figure of a run of which less is better; of one that was lost, infinity."""
    value: Any
    if outcome["status"] != "done":
        return math.inf
    if what == "wer":
        value = (outcome["wer"] or {}).get("wer")
    elif what in ("seconds", "reached"):
        value = outcome.get("seconds" if what == "seconds" else "reached_seconds")
    else:
        if what not in outcome["scores"]:
            raise SettingsError(f"claim: {what!r} is not a score of the runs ({', '.join(outcome['scores'])})")
        value = outcome["scores"][what]
    return math.inf if value is None else float(value)


def _divide(one: float, other: float) -> float:
    if math.isnan(one) or math.isnan(other) or (math.isinf(one) and math.isinf(other)):
        return math.nan  # both were lost
    return one / other if other else (1.0 if not one else math.inf)
