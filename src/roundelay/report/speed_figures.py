"""Figures of speed: time to the target, throughput, speed-up, efficiency, bytes, and the effect of a straggler."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from operator import itemgetter

from roundelay.report import number_format as say
from roundelay.report.figure_spec import Axis, Figure, Rule, Series, Style
from roundelay.report.learning_figures import failures, ordered, spread_point
from roundelay.report.report_data import ReportData
from roundelay.runs.downsampling import significant
from roundelay.runs.history import straggler
from roundelay.study.schema import Spread, StrategyRow


def speed(data: ReportData) -> Iterator[Figure]:
    """Make the figures of time to target, throughput, speed-up and efficiency, each by one clock."""
    for clock in data.clocks:
        rows = [row for row in data.rows if row["clock"] == clock]
        if data.target is not None:
            yield _time_to_target(data, rows, clock)
        yield _throughput(data, rows, clock)
        yield from _over_learners(data, rows, clock)


def _time_to_target(data: ReportData, rows: list[StrategyRow], clock: str) -> Figure:
    target = data.target
    assert target is not None
    value = say.amount(target["score"], target["value"])
    return Figure(
        f"time-to-target-{clock}",
        f"Time to target, {clock} time",
        f"Until {target['score']} was at most {value} on held-out data; the target was fixed before any run, "
        "and a run that does not reach it counts as a miss.",
        "dots",
        Axis(f"{clock} time to target", "s", "log"),
        Axis("strategy"),
        ordered(
            Series(style, label, spread_point(row["time"]), failures(row) or "not reached")
            for row, _, label, style in data.panels(rows)
        ),
        clock=clock,
    )


def _throughput(data: ReportData, rows: list[StrategyRow], clock: str) -> Figure:
    return Figure(
        f"throughput-{clock}",
        f"Throughput, {clock} time",
        "Frames per second of all learners together; this does not say how much a frame improves the model.",
        "dots",
        Axis(f"frames per second of {clock} time", "", "log"),
        Axis("strategy"),
        ordered(
            (
                Series(style, label, _throughput_point(row), failures(row) or "unknown")
                for row, _, label, style in data.panels(rows)
            ),
            most_first=True,
        ),
        clock=clock,
    )


def _throughput_point(row: StrategyRow) -> list[list[float]]:
    """Return the throughput of runs that are done; the speed of other runs says little."""
    return spread_point(row["frames_per_second"]) if row["statuses"].get("done") else []


def _over_learners(data: ReportData, rows: list[StrategyRow], clock: str) -> Iterator[Figure]:
    if len({row["learners"] for row in rows}) < 2:
        return
    kinds = (
        ("throughput_speedup", "throughput", f"Speed-up in throughput, {clock} time", "frames per second"),
        ("speedup", "target", f"Speed-up to the target, {clock} time", "the median time to the target"),
    )
    for key, short, title, measure in kinds:
        series = _lines(data, rows, key)
        if not series:
            continue
        yield Figure(
            f"speedup-{short}-{clock}", title,
            f"Of {measure}, over one learner on the same cluster and model; ideal: N times with N learners.",
            "lines", Axis("learners", scale="log"), Axis("speed-up", scale="log"), series,
            rules=[Rule("ideal", slope=1.0)], clock=clock,
        )  # fmt: skip
        yield Figure(
            f"efficiency-{short}-{clock}", title.replace("Speed-up", "Efficiency"),
            "The speed-up divided by the number of learners.",
            "lines", Axis("learners", scale="log"), Axis("efficiency", "%", zero=True),
            _lines(data, rows, key.replace("speedup", "efficiency"), 100.0), rules=[Rule("ideal", y=100.0)],
            clock=clock,
        )  # fmt: skip


def _lines(data: ReportData, rows: list[StrategyRow], key: str, scale: float = 1.0) -> list[Series]:
    lines: dict[tuple[str, str], list[StrategyRow]] = {}
    for row in rows:
        if row["statuses"].get("done"):
            lines.setdefault((row["strategy"], data.conditions(row)), []).append(row)
    series = []
    for (strategy, place), own in lines.items():
        points = [[float(row["learners"]), value * scale] for row in own if (value := _number(row, key)) is not None]
        if points:
            best = {1.0: scale} | {x: max(y for at, y in points if at == x) for x, _ in points}
            shown = [[x, significant(y)] for x, y in sorted(best.items())]
            series.append(Series(Style(strategy, 0, place), strategy, shown))
    return [line for line in series if len(line.points) > 1]


def _number(row: StrategyRow, key: str) -> float | None:
    value: float | None = itemgetter(key)(row)
    return value if value is not None and value > 0 else None


def traffic(data: ReportData) -> Iterator[Figure]:
    """Make the figure of bytes sent."""
    series = []
    for row, _, label, style in data.panels():
        sent = data.bytes_per_frame(row)
        ends = [[significant(v) for v in (statistics.median(sent), min(sent), max(sent))]] if sent else []
        if style.learners:  # one learner sends nothing
            series.append(Series(style, label, ends, failures(row) or "nothing was sent"))
    if any(line.points for line in series):
        yield Figure(
            "bytes", "Bytes per frame", "Bytes that all learners and servers sent per frame trained.",
            "dots", Axis("bytes per frame", "B", "log"), Axis("strategy"), ordered(series),
        )  # fmt: skip


def resilience(data: ReportData) -> Iterator[Figure]:
    """Make the figures of time to target, throughput and loss by the slowness of the straggler, if it varies."""
    for clock in data.clocks:
        rows = [
            row for row in data.rows if row["clock"] == clock and row["learners"] > 1 and row["statuses"].get("done")
        ]
        for name, title, axis, spread_of in (
            ("target", f"Time to target against the straggler, {clock} time",
             Axis(f"{clock} time to target", "s", zero=True), lambda row: row["time"] if data.target else None),
            ("throughput", f"Throughput against the straggler, {clock} time",
             Axis(f"frames per second of {clock} time", zero=True), lambda row: row["frames_per_second"]),
            ("loss", "Held-out loss against the straggler", Axis("held-out loss"),
             lambda row: row["scores"].get("loss")),
        ):  # fmt: skip
            yield Figure(
                f"straggler-{name}-{clock}", title,
                "How many times slower one learner is than the others, at most; 1 means no straggler.",
                "lines", Axis("slowness of the straggler", "times", "log"), axis,
                list(_against_slowness(data, rows, spread_of)), clock=clock if name != "loss" else "",
            )  # fmt: skip


def _against_slowness(
    data: ReportData, rows: list[StrategyRow], spread_of: Callable[[StrategyRow], Spread | None]
) -> Iterator[Series]:
    """Make one line per strategy and number of learners, over clusters that differ only by the straggler."""
    lines: dict[tuple[str, str, int], list[StrategyRow]] = {}
    for row in rows:
        lines.setdefault((_but_for_straggler(data, row), row["strategy"], row["learners"]), []).append(row)
    several = len({kind for kind, _, _ in lines}) > 1
    for (_, strategy, learners), own in lines.items():
        own.sort(key=lambda row: _slowness(data, row))
        points = [[_slowness(data, row), *point] for row in own for point in spread_point(spread_of(row))]
        if len({point[0] for point in points}) > 1:
            facet = data.facet(own[0]) if several else say.learners(learners)
            yield Series(data.style(own[0], facet), strategy, points)


def _but_for_straggler(data: ReportData, row: StrategyRow) -> str:
    """Return what identifies a row, without the straggler and the name of the cluster."""
    settings = next((details.settings for _, details in data.runs(row)), {})
    cluster = settings.get("cluster")
    kept = {k: v for k, v in cluster.items() if k not in ("name", "stragglers")} if isinstance(cluster, dict) else {}
    return json.dumps([row["on"], row["model"], kept if row["clock"] == "virtual" else {}], sort_keys=True, default=str)


def _slowness(data: ReportData, row: StrategyRow) -> float:
    return max((straggler(details.settings, details.about) for _, details in data.runs(row)), default=1.0)


def profiles(data: ReportData) -> Iterator[Figure]:
    """Make the figure of performance profiles, if there is more than one set of conditions."""
    found = [profile for profile in data.summary["profiles"] if len(profile["factors"]) > 1]
    for clock in data.clocks:
        series = [
            Series(Style(own["strategy"], 0), own["strategy"], [
                [significant(factor), significant(100 * share)]
                for factor, share in zip(own["factors"], own["shares"], strict=False)
            ])
            for own in found if own["clock"] == clock
        ]  # fmt: skip
        if series and len(data.summary["groups"]) > 1:
            yield Figure(
                f"profiles-{clock}", f"Performance profiles, {clock} time",
                "Share of conditions in which a strategy's time to target is within a factor of the best time.",
                "lines", Axis("factor of the best time", scale="log"), Axis("share of conditions", "%", zero=True),
                series, clock=clock,
            )  # fmt: skip
