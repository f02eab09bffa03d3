"""Figures of scores: error rates with intervals, and losses by frames and by time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

from roundelay.report.figure_spec import Axis, Figure, Rule, Series, Style
from roundelay.report.report_data import ReportData
from roundelay.runs.downsampling import significant
from roundelay.runs.reader import finite
from roundelay.study.schema import Spread, StrategyRow

NAMES = {
    "loss": "Held-out loss",
    "error": "Frame error",
    "frame_error": "Frame error",
    "distance": "Consensus distance",
}
MARKS = "Each line is the median over seeds; the band is their range."


def accuracy(data: ReportData) -> Iterator[Figure]:
    """Make the figures of word error rate and frame error at the end of the budget."""
    if any(row["wer"] for row in data.rows):
        yield Figure(
            "wer",
            "Word error rate",
            "Bars are 95 % intervals over utterances of one seed, or the range over several seeds.",
            "dots",
            Axis("word error rate", "%"),
            Axis("strategy"),
            ordered(_wer(data, row, label, style) for row, _, label, style in data.panels()),
        )
    for name in ("error", "frame_error"):
        if any(name in row["scores"] for row in data.rows):
            series = ordered(
                Series(style, label, _percent(spread_point(row["scores"].get(name))), failures(row))
                for row, _, label, style in data.panels()
            )
            known = [line.points[0][0] for line in series if line.points and line.points[0][0] > 0]
            wide = bool(known) and max(known) > 6 * min(known)
            yield Figure(
                name.replace("_", "-"),
                "Frame error at the end of the budget",
                "On held-out data, by the consensus of all learners. Dots are medians over seeds, bars their range.",
                "dots",
                Axis("frame error", "%", "log" if wide else "linear"),
                Axis("strategy"),
                series,
            )


def _wer(data: ReportData, row: StrategyRow, label: str, style: Style) -> Series:
    seeds = [cell["wer"] for cell, _ in data.runs(row) if cell["wer"]]
    point = spread_point(row["wer"])
    interval = seeds[0].get("interval") if len(seeds) == 1 and seeds[0] else None
    if point and isinstance(interval, list) and len(interval) == 2:
        ends = [finite(end) for end in interval]
        point = [[point[0][0], *(end for end in ends if end is not None)]] if None not in ends else point
    return Series(style, label, point, failures(row) or "not decoded")


def ordered(series: Iterable[Series], *, most_first: bool = False) -> list[Series]:
    """Sort: the reference first, then the best, series without a point last; panels keep their order."""
    sign = -1.0 if most_first else 1.0

    def place(line: Series) -> tuple[int, float]:
        if not line.style.learners:
            return 0, 0.0
        return (1, sign * line.points[0][0]) if line.points else (2, 0.0)

    listed = list(series)
    facets = list(dict.fromkeys(line.style.facet for line in listed))
    return sorted(listed, key=lambda line: (facets.index(line.style.facet), *place(line)))


def spread_point(spread: Spread | None) -> list[list[float]]:
    """Return a median with its range as the one point of a row, or no point."""
    if spread is None or spread["median"] is None:
        return []
    low = spread["low"] if spread["low"] is not None else spread["median"]
    high = spread["high"] if spread["high"] is not None else spread["median"]
    return [[significant(value) for value in (spread["median"], low, high)]]


def _percent(points: list[list[float]]) -> list[list[float]]:
    return [[significant(100 * value) for value in point] for point in points]


def failures(row: StrategyRow) -> str:
    """Return the reason why a row may have no point: the states of runs that are not done."""
    wrong = {status: n for status, n in row["statuses"].items() if status != "done" and n}
    if not wrong:
        return ""
    return ", ".join(f"{n} {status}" if sum(row["statuses"].values()) > 1 else status for status, n in wrong.items())


def learning(data: ReportData) -> Iterator[Figure]:
    """Make the figures of scores against frames and against time, and of the training loss."""
    for name in ("loss", "error", "frame_error"):
        if not any(name in row["scores"] for row in data.rows):
            continue
        yield _against_frames(data, name)
        for clock in data.clocks:
            yield _against_time(data, name, clock)
    yield Figure(
        "training-loss",
        "Training loss",
        "Of minibatches in the order of training, first seed: the mean of neighbours; the band is their range.",
        "lines",
        Axis("frames trained by all learners"),
        Axis("training loss", scale="log"),
        [
            Series(style, label, details.training)
            for row, _, label, style in data.panels()
            for _, details in list(data.runs(row))[:1]
        ],
    )


def _against_frames(data: ReportData, name: str) -> Figure:
    return Figure(
        f"{name.replace('_', '-')}-frames",
        f"{NAMES[name]} against frames",
        f"Score by frames trained. {MARKS}",
        "lines",
        Axis("frames trained by all learners"),
        _axis(name),
        [Series(style, label, curve(data, row, name, "frames")) for row, _, label, style in data.panels()],
        rules=_target(data, name),
    )


def _against_time(data: ReportData, name: str, clock: str) -> Figure:
    rows = [row for row in data.rows if row["clock"] == clock]
    series = [Series(style, label, curve(data, row, name, "seconds")) for row, _, label, style in data.panels(rows)]
    ends = [line.points[-1][0] for line in series if line.points]
    wide = bool(ends) and max(ends) > 3 * min(ends)
    return Figure(
        f"{name.replace('_', '-')}-time-{clock}",
        f"{NAMES[name]} against {clock} time",
        f"Score by time, without evaluations. {MARKS}",
        "lines",
        Axis(f"{clock} time", "s", "log" if wide else "linear"),
        _axis(name),
        series,
        rules=_target(data, name),
        clock=clock,
    )


def _axis(name: str) -> Axis:
    if name == "loss":
        return Axis("held-out loss", scale="log")
    return Axis(NAMES[name].lower(), "%" if "error" in name else "", "log")


def _target(data: ReportData, name: str) -> list[Rule]:
    if data.target is None or data.target["score"] != name:
        return []
    return [Rule("target", data.target["value"] * (100 if "error" in name else 1))]


def curve(data: ReportData, row: StrategyRow, name: str, over: str) -> list[list[float]]:
    """Return the median over a row's seeds at each evaluation, with its range."""
    seen: dict[int, list[tuple[float, float]]] = {}
    for cell, _ in data.runs(row):
        for point in cell["curve"]:
            score = finite(point["scores"].get(name))
            x = point["frames"] if over == "frames" else point["seconds"]
            if score is not None:
                seen.setdefault(point["minibatch"], []).append((x, score * (100 if "error" in name else 1)))
    points = []
    for _, pairs in sorted(seen.items()):
        scores = [score for _, score in pairs]
        ends = [min(scores), max(scores)] if len(scores) > 1 else []
        points.append(
            [significant(v) for v in (statistics.median(x for x, _ in pairs), statistics.median(scores), *ends)]
        )
    return points
