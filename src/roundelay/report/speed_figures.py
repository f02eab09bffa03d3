"""Figures of speed: time to the target, throughput, speed-up, efficiency, bytes, and what a straggler does to them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator

from roundelay.report import number_format as words
from roundelay.report.figure_spec import Axis, Figure, Rule, Series, Style
from roundelay.report.learning_figures import ordered, spread_point, why_not
from roundelay.report.report_data import ReportData
from roundelay.runs.downsampling import significant
from roundelay.runs.history import straggler
from roundelay.study.schema import Spread, StrategyRow

__all__ = ["profiles", "resilience", "speed", "traffic"]


def speed(board: ReportData) -> Iterator[Figure]:
    """Make the figures of time to target, throughput, speed-up and efficiency, each by one clock."""
    for clock in board.clocks:
        rows = [row for row in board.rows if row["clock"] == clock]
        if board.target is not None:
            yield _time_to_target(board, rows, clock)
        yield _throughput(board, rows, clock)
        yield from _over_learners(board, rows, clock)


def _time_to_target(board: ReportData, rows: list[StrategyRow], clock: str) -> Figure:
    target = board.target
    assert target is not None
    value = words.amount(target["score"], target["value"])
    return Figure(
        f"time-to-target-{clock}",
        f"Time to target, {clock} time",
        f"Until {target['score']} was at most {value} on held-out data; the target was fixed before any run, "
        "and a run that missed it counts as missed.",
        "dots",
        Axis(f"{clock} time to target", "s", "log"),
        Axis("strategy"),
        ordered(
            Series(style, label, spread_point(row["time"]), why_not(row) or "not reached")
            for row, _, label, style in board.panels(rows)
        ),
        clock=clock,
    )


def _throughput(board: ReportData, rows: list[StrategyRow], clock: str) -> Figure:
    return Figure(
        f"throughput-{clock}",
        f"Throughput, {clock} time",
        "Frames a second that all learners trained together, whatever they were worth.",
        "dots",
        Axis(f"frames a second of {clock} time", "", "log"),
        Axis("strategy"),
        ordered(
            (
                Series(style, label, _throughput_point(row), why_not(row) or "unknown")
                for row, _, label, style in board.panels(rows)
            ),
            most_first=True,
        ),
        clock=clock,
    )


def _throughput_point(row: StrategyRow) -> list[list[float]]:
    """Return the throughput of runs that came to an end; how fast one broke off says little."""
    return spread_point(row["frames_per_second"]) if row["statuses"].get("done") else []


def _over_learners(board: ReportData, rows: list[StrategyRow], clock: str) -> Iterator[Figure]:
    if len({row["learners"] for row in rows}) < 2:
        return
    kinds = (
        ("throughput_speedup", "throughput", f"Speed-up in throughput, {clock} time", "frames a second"),
        ("speedup", "target", f"Speed-up to the target, {clock} time", "the median time to the target"),
    )
    for key, short, title, what in kinds:
        series = _lines(board, rows, key)
        if not series:
            continue
        yield Figure(
            f"speedup-{short}-{clock}", title,
            f"Of {what}, over one learner on the same cluster and model; ideally, each learner adds a whole one.",
            "lines", Axis("learners", scale="log"), Axis("speed-up", scale="log"), series,
            rules=[Rule("ideal", slope=1.0)], clock=clock,
        )  # fmt: skip
        yield Figure(
            f"efficiency-{short}-{clock}", title.replace("Speed-up", "Efficiency"),
            "The speed-up by the number of learners: what share of each learner counted.",
            "lines", Axis("learners", scale="log"), Axis("efficiency", "%", zero=True),
            _lines(board, rows, key.replace("speedup", "efficiency"), 100.0), rules=[Rule("ideal", y=100.0)],
            clock=clock,
        )  # fmt: skip


def _lines(board: ReportData, rows: list[StrategyRow], key: str, scale: float = 1.0) -> list[Series]:
    lines: dict[tuple[str, str], list[StrategyRow]] = {}
    for row in rows:
        if row["statuses"].get("done"):
            lines.setdefault((row["strategy"], board.place(row)), []).append(row)
    series = []
    for (strategy, place), own in lines.items():
        points = [[float(row["learners"]), value * scale] for row in own if (value := _number(row, key)) is not None]
        if points:
            best = {1.0: scale} | {x: max(y for at, y in points if at == x) for x, _ in points}
            shown = [[x, significant(y)] for x, y in sorted(best.items())]
            series.append(Series(Style(strategy, 0, place), strategy, shown))
    return [line for line in series if len(line.points) > 1]


def _number(row: StrategyRow, key: str) -> float | None:
    value = {
        "speedup": row["speedup"],
        "efficiency": row["efficiency"],
        "throughput_speedup": row["throughput_speedup"],
        "throughput_efficiency": row["throughput_efficiency"],
    }[key]
    return value if value is not None and value > 0 else None


def traffic(board: ReportData) -> Iterator[Figure]:
    """Make the figure of bytes on the wire."""
    series = []
    for row, _, label, style in board.panels():
        sent = [details.total_bytes / details.frames for _, details in board.runs(row)
                if details.total_bytes and details.frames]  # fmt: skip
        ends = [[significant(v) for v in (statistics.median(sent), min(sent), max(sent))]] if sent else []
        if style.learners:  # one learner sends nothing
            series.append(Series(style, label, ends, why_not(row) or "nothing was sent"))
    if any(line.points for line in series):
        yield Figure(
            "bytes", "Bytes on the wire", "What all learners and servers sent, for each frame that was trained.",
            "dots", Axis("bytes a frame", "B", "log"), Axis("strategy"), ordered(series),
        )  # fmt: skip


def resilience(board: ReportData) -> Iterator[Figure]:
    """Make the figures of time to target, throughput and loss against how slow the straggler is, if that was varied."""
    for clock in board.clocks:
        rows = [
            row for row in board.rows if row["clock"] == clock and row["learners"] > 1 and row["statuses"].get("done")
        ]
        for name, title, axis, spread_of in (
            ("target", f"Time to target against the straggler, {clock} time",
             Axis(f"{clock} time to target", "s", zero=True), lambda row: row["time"] if board.target else None),
            ("throughput", f"Throughput against the straggler, {clock} time",
             Axis(f"frames a second of {clock} time", zero=True), lambda row: row["frames_per_second"]),
            ("loss", "Held-out loss against the straggler", Axis("held-out loss"),
             lambda row: row["scores"].get("loss")),
        ):  # fmt: skip
            yield Figure(
                f"straggler-{name}-{clock}", title,
                "How many times slower than the others one learner is, at worst; 1 means that there is no straggler.",
                "lines", Axis("slowness of the straggler", "times", "log"), axis,
                list(_against_slowness(board, rows, spread_of)), clock=clock if name != "loss" else "",
            )  # fmt: skip


def _against_slowness(
    board: ReportData, rows: list[StrategyRow], spread_of: Callable[[StrategyRow], Spread | None]
) -> Iterator[Series]:
    """Make a line for each strategy and number of learners on clusters that differ by their straggler only."""
    lines: dict[tuple[str, str, int], list[StrategyRow]] = {}
    for row in rows:
        lines.setdefault((_but_for_straggler(board, row), row["strategy"], row["learners"]), []).append(row)
    several = len({kind for kind, _, _ in lines}) > 1
    for (_, strategy, learners), own in lines.items():
        own.sort(key=lambda row: _slowness(board, row))
        points = [[_slowness(board, row), *point] for row in own for point in spread_point(spread_of(row))]
        if len({point[0] for point in points}) > 1:
            facet = board.facet(own[0]) if several else words.learners(learners)
            yield Series(board.style(own[0], facet), strategy, points)


def _but_for_straggler(board: ReportData, row: StrategyRow) -> str:
    """Tell rows apart by all but the straggler, and the name that a cluster has for its sake."""
    settings = next((details.settings for _, details in board.runs(row)), {})
    cluster = settings.get("cluster")
    kept = {k: v for k, v in cluster.items() if k not in ("name", "stragglers")} if isinstance(cluster, dict) else {}
    return json.dumps([row["on"], row["model"], kept if row["clock"] == "virtual" else {}], sort_keys=True, default=str)


def _slowness(board: ReportData, row: StrategyRow) -> float:
    return max((straggler(details.settings, details.about) for _, details in board.runs(row)), default=1.0)


def profiles(board: ReportData) -> Iterator[Figure]:
    """Make the figure of performance profiles, where there is more than one set of conditions to count over."""
    found = [profile for profile in board.summary["profiles"] if len(profile["factors"]) > 1]
    for clock in board.clocks:
        series = [
            Series(Style(own["strategy"], 0), own["strategy"], [
                [significant(factor), significant(100 * share)]
                for factor, share in zip(own["factors"], own["shares"], strict=False)
            ])
            for own in found if own["clock"] == clock
        ]  # fmt: skip
        if series and len(board.summary["groups"]) > 1:
            yield Figure(
                f"profiles-{clock}", f"Performance profiles, {clock} time",
                "In what share of conditions a strategy's time to target is within a factor of the best one's there.",
                "lines", Axis("times the best one's time", scale="log"), Axis("share of conditions", "%", zero=True),
                series, clock=clock,
            )  # fmt: skip
