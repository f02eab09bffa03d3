"""Figures of what went on inside: who spent time on what, staleness, how far learners are apart, timelines."""

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

__all__ = ["apart", "shares", "shown_runs", "timelines"]

SPANS = 90_000
"""How many spans a page carries in all, about a megabyte of them."""
MOST_LEARNERS = 128
"""How many learners of a run are shown one by one."""
MOST_SHOWN = 64
"""How many runs have a timeline and bars of their own."""
TICKS = 1_000_000
_PLACE: dict[str, int] = {kind: place for place, kind in enumerate(KINDS)}


def shares(board: ReportData) -> Iterator[Figure]:
    """Make the figures of shares of time: the mean of each row's learners, then learner by learner."""
    bars = []
    for row, _, label, style in board.panels():
        parts: Counter[str] = Counter()
        runs = [own for _, details in board.runs(row) if (own := details.shares())]
        for own in runs:
            parts.update({kind: significant(100 * share / len(runs)) for kind, share in own.items()})
        if parts and style.learners:
            bars.append(Bar(style, label, {kind: parts[kind] for kind in KINDS if parts[kind]}))
    axis = Axis("share of time", "%", zero=True)
    yield Figure(
        "shares", "What learners spent their time on",
        "Mean of all learners. Serving, the thin bar, goes on beside computing and is not part of the whole.",
        "stack", axis, Axis("strategy"), bars=bars,
    )  # fmt: skip
    own_bars = [bar for cell, details in shown_runs(board) for bar in _learner_bars(cell, details)]
    yield Figure(
        "shares-learner", "What each learner spent its time on",
        "Of the run that is chosen above: a slow learner computes while the others wait for it, if they have to. "
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


def shown_runs(board: ReportData) -> list[tuple[CellResult, Details]]:
    """Return the runs that are shown learner by learner: the first seed of each row, trials not."""
    firsts = [next(board.runs(row), None) for row in board.rows]
    return [run for run in firsts if run is not None and run[1].spans][:MOST_SHOWN]


def timelines(board: ReportData) -> list[dict[str, Any]]:
    """Return the timeline of each shown run, as the page draws it."""
    shown = shown_runs(board)
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
            {"time": event["time"], "what": event["event"], "member": str(event.get("member", ""))}
            for event in details.events
            if event.get("event") != "fallback"
        ],
    }


def _pack(spans: list[Span], begin: float, tick: float) -> list[int]:
    """Write spans as small numbers: ticks since the one before began, ticks it took, kind."""
    packed: list[int] = []
    before = 0
    for span in sorted(spans, key=lambda span: span.begin):
        at = round((span.begin - begin) / tick)
        packed += [at - before, max(1, round(span.seconds / tick)), _PLACE[span.kind]]
        before = at
    return packed


def apart(board: ReportData) -> Iterator[Figure]:
    """Make the figures of staleness and of the distance between learners and their consensus."""
    stale, far = [], []
    for row, _, label, style in board.panels():
        if not style.learners:
            continue
        staleness: Counter[float] = Counter()
        distances: Counter[float] = Counter()
        for _, details in board.runs(row):
            staleness.update(details.staleness)
            distances.update(details.distances)
        stale.append(Series(style, label, _shares(histogram(staleness))))
        far.append(Series(style, label, _shares(log_histogram(distances))))
    yield Figure(
        "staleness", "Staleness of gradients",
        "Updates or averagings between the weights that a gradient was taken at and its step; "
        "strategies that are never stale are not shown.",
        "ridges", Axis("staleness", zero=True), Axis("share of steps", "%"), [s for s in stale if s.points],
    )  # fmt: skip
    lines = [
        Series(style, label, [p for p in curve(board, row, "distance", "frames") if p[1] > 0])
        for row, _, label, style in board.panels()
        if style.learners
    ]
    yield Figure(
        "distance-frames", "Distance from the consensus",
        "How far the furthest learner's weights are from the consensus at each evaluation, as the norm of the "
        "difference; strategies whose learners never differ are not shown.",
        "lines", Axis("frames trained by all learners"), Axis("distance", scale="log"), [s for s in lines if s.points],
    )  # fmt: skip
    yield Figure(
        "distance", "Distribution of the distance from the consensus", "Over all evaluations and seeds.",
        "ridges", Axis("distance", scale="log"), Axis("share", "%"), [s for s in far if s.points],
    )  # fmt: skip


def _shares(bins: list[tuple[float, float, int]]) -> list[list[float]]:
    whole = sum(n for _, _, n in bins)
    return [[significant(low), significant(high), significant(100 * n / whole)] for low, high, n in bins]
