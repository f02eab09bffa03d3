"""Figures of time by kind, staleness, consensus distance, and timelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from roundelay.report.figure_spec import Axis, Bar, Figure, Series, Style
from roundelay.report.learning_figures import curve
from roundelay.report.report_data import ReportData
from roundelay.runs.downsampling import Span, histogram, log_histogram, select_window, significant
from roundelay.runs.history import Details
from roundelay.runs.record import KINDS
from roundelay.study.schema import CellResult

SPANS = 90_000
"""Spans on one page, about a megabyte."""
MOST_LEARNERS = 128
"""Learners of a run that are shown one by one."""
MOST_SHOWN = 64
"""Runs with a timeline and bars."""
TICKS = 1_000_000
_KIND_INDEX: dict[str, int] = {kind: index for index, kind in enumerate(KINDS)}


def shares(data: ReportData) -> Iterator[Figure]:
    """Make the figures of shares of time: the mean of each row's learners, then learner by learner."""
    bars = []
    for row, _, label, style in data.panels():
        parts: Counter[str] = Counter()
        runs = [own for _, details in data.runs(row) if (own := details.shares())]
        for own in runs:
            parts.update({kind: significant(100 * share / len(runs)) for kind, share in own.items()})
        if parts and style.learners:
            bars.append(Bar(style, label, {kind: parts[kind] for kind in KINDS if parts[kind]}))
    axis = Axis("share of time", "%", zero=True)
    yield Figure(
        "shares", "Time by kind",
        "Mean of all learners. Serving, the thin bar, happens beside computing and is not part of the total.",
        "stack", axis, Axis("strategy"), bars=bars,
    )  # fmt: skip
    own_bars = [bar for cell, details in shown_runs(data) for bar in _learner_bars(cell, details)]
    yield Figure(
        "shares-learner", "Time by kind, for each learner",
        "Of the run chosen above. Where learners must wait for a slow one, it computes while the others wait. "
        f"At most {MOST_LEARNERS} are shown.",
        "stack", axis, Axis("learner"), bars=own_bars,
    )  # fmt: skip


def _learner_bars(cell: CellResult, details: Details) -> Iterator[Bar]:
    for member, kinds in list(details.spent.items())[:MOST_LEARNERS]:
        whole = sum(seconds for kind, seconds in kinds.items() if kind not in ("serve", "evaluate"))
        if whole <= 0:
            whole = kinds.get("serve", 0.0)
        parts: dict[str, float] = {kind: significant(100 * kinds[kind] / whole, 4) for kind in KINDS
                 if kind != "evaluate" and whole and kinds.get(kind)}  # fmt: skip
        if parts:
            yield Bar(Style(cell["strategy"], cell["learners"]), member, parts, cell["name"])


def shown_runs(data: ReportData) -> list[tuple[CellResult, Details]]:
    """Return the runs that are shown learner by learner: the first seed of each row, without trials."""
    firsts = [next(data.runs(row), None) for row in data.rows]
    return [run for run in firsts if run is not None and run[1].spans][:MOST_SHOWN]


def timelines(data: ReportData) -> list[dict[str, Any]]:
    """Return the timeline of each shown run for the page."""
    shown = shown_runs(data)
    most = SPANS // max(len(shown), 1)
    return [_timeline(cell, details, most) for cell, details in shown]


def _timeline(cell: CellResult, details: Details, most: int) -> dict[str, Any]:
    moments = [float(event["time"]) for event in details.events if event.get("event") in ("lost", "fault")]
    window = select_window(dict(list(details.spans.items())[:MOST_LEARNERS]), most, moments)
    tick = (window.end - window.begin) / TICKS or 1.0
    return {
        "run": cell["name"],
        "strategy": cell["strategy"],
        "learners": cell["learners"],
        "clock": cell["clock"],
        "begin": window.begin,
        "end": window.end,
        "whole": max(window.whole, details.seconds),
        "tick": tick,
        "kinds": list(KINDS),
        "rows": [
            {"member": member, "spans": _pack(spans, window.begin, tick)} for member, spans in window.spans.items()
        ],
        "events": [
            {"time": event["time"], "event": event["event"], "member": str(event.get("member", ""))}
            for event in details.events
            if event.get("event") != "fallback"
        ],
    }


def _pack(spans: list[Span], begin: float, tick: float) -> list[int]:
    """Write spans as small numbers: ticks since the previous start, ticks of duration, kind."""
    packed: list[int] = []
    before = 0
    for span in sorted(spans, key=lambda span: span.begin):
        at = round((span.begin - begin) / tick)
        packed += [at - before, max(1, round(span.seconds / tick)), _KIND_INDEX[span.kind]]
        before = at
    return packed


def apart(data: ReportData) -> Iterator[Figure]:
    """Make the figures of staleness and of the consensus distance."""
    stale, far = [], []
    for row, _, label, style in data.panels():
        if not style.learners:
            continue
        staleness: Counter[float] = Counter()
        distances: Counter[float] = Counter()
        for _, details in data.runs(row):
            staleness.update(details.staleness)
            distances.update(details.distances)
        stale.append(Series(style, label, _shares(histogram(staleness))))
        far.append(Series(style, label, _shares(log_histogram(distances))))
    yield Figure(
        "staleness", "Staleness of gradients",
        "Updates or averagings between the snapshot of a gradient and its step; strategies without staleness are not "
        "shown.",
        "ridges", Axis("staleness", zero=True), Axis("share of steps", "%"), [s for s in stale if s.points],
    )  # fmt: skip
    lines = [
        Series(style, label, [p for p in curve(data, row, "distance", "frames") if p[1] > 0])
        for row, _, label, style in data.panels()
        if style.learners
    ]
    yield Figure(
        "distance-frames", "Consensus distance",
        "The largest distance of a learner's weights from the consensus at each evaluation, as the norm of the "
        "difference; strategies with equal learners are not shown.",
        "lines", Axis("frames trained by all learners"), Axis("consensus distance", scale="log"),
        [s for s in lines if s.points],
    )  # fmt: skip
    yield Figure(
        "distance", "Distribution of the consensus distance", "Over all evaluations and seeds.",
        "ridges", Axis("consensus distance", scale="log"), Axis("share", "%"), [s for s in far if s.points],
    )  # fmt: skip


def _shares(bins: list[tuple[float, float, int]]) -> list[list[float]]:
    whole = sum(n for _, _, n in bins)
    return [[significant(low), significant(high), significant(100 * n / whole)] for low, high, n in bins]
