"""Figures for a paper: every figure of a report, drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roundelay.errors import MissingExtra, SettingsError
from roundelay.files import replacing
from roundelay.report.figure_spec import Bar, Figure, Series

FORMATS = ("svg", "png", "pdf")
# As in the page; colours also differ in lightness, and each has a dash and a marker.
COLOURS = ("#2f5d8a", "#c2571a", "#1b7f72", "#9b2c5e", "#6a4fb3", "#93700f", "#1f86b8", "#55722b")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "p")
KINDS = {"compute": ("#44698f", ""), "communicate": ("#d98b3a", "////"), "wait": ("#d9d5cc", "\\\\\\")}
QUIET = "#646a73"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.edgecolor": "#8a8f96",
    "axes.grid": True,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "grid.color": "#e6e3dd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.6,
    "pdf.fonttype": 42,
    "savefig.bbox": "tight",
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "roundelay",  # the same figure gives the same file
}


def draw_all(
    figures: Sequence[Figure],
    strategies: Sequence[str],
    folder: Path,
    formats: Sequence[str],
    watch: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw every figure in every format into ``folder``; return the files.  ``watch`` is called for each."""
    for name in formats:
        if name not in FORMATS:
            raise SettingsError(f"figures: unknown format {name!r}; use one of {', '.join(FORMATS)}")
    written = []
    for place, figure in enumerate(figures, start=1):
        watch(f"drawing figure {place} of {len(figures)}: {figure.title}")
        written += draw(figure, strategies, folder, formats)
    return written


def draw(figure: Figure, strategies: Sequence[str], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draw one figure; bars of single runs are only in the page."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    facets = _facets(figure)
    if not facets or any(bar.run for bar in figure.bars):
        return []
    written = []
    with rc_context(STYLE):
        columns = min(len(facets), 3)
        rows = math.ceil(len(facets) / columns)
        longest = max(len(items) for items in facets.values())
        height = 2.3 if figure.kind == "lines" else 0.6 + longest * (0.34 if figure.kind == "ridges" else 0.2)
        canvas = Canvas(figsize=(max(3.4, 2.7 * columns), height * rows + 0.3), layout="constrained")
        axes = canvas.subplots(rows, columns, squeeze=False, sharex=True, sharey=figure.kind == "lines").flat
        for ax, (facet, items) in zip(axes, facets.items(), strict=False):
            ax.set_title(facet)
            _PAINT[figure.kind](ax, figure, items, strategies)
        for ax in list(axes)[len(facets) :]:
            ax.remove()
        _legend(canvas, figure)
        for name in formats:
            path = folder / f"{figure.name}.{name}"
            undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(name)
            with replacing(path) as temporary:
                canvas.savefig(temporary, format=name, metadata=undated)
            written.append(path)
    return written


def _facets(figure: Figure) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    items: list[Series | Bar] = [*figure.series, *figure.bars]
    for item in items:
        found.setdefault(item.style.facet, []).append(item)
    return found


def _look(strategy: str, strategies: Sequence[str]) -> dict[str, Any]:
    if strategy not in strategies:
        return {"color": QUIET, "linestyle": ":", "marker": "o", "markerfacecolor": "white"}
    place = strategies.index(strategy)
    look = {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[(place + place // len(COLOURS)) % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
    }
    return look | ({"markerfacecolor": "white"} if place // len(MARKERS) % 2 else {})


def _legend(canvas: Any, figure: Figure) -> None:
    handles: dict[str, Any] = {}
    for ax in canvas.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles and figure.kind in ("lines", "stack"):
        canvas.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=min(len(handles), max(3, round(canvas.get_figwidth() / 1.4))),
        )


def _lines(ax: Any, figure: Figure, items: list[Series], strategies: Sequence[str]) -> None:
    for series in items:
        points = [p for p in series.points if _drawable(figure, p)]
        if not points:
            continue
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        look = _look(series.style.strategy, strategies)
        ax.plot(xs, ys, label=series.label, markevery=max(1, len(points) // 8), **look)
        banded = [p for p in points if len(p) > 3]
        if banded:
            low, high = [p[2] for p in banded], [p[3] for p in banded]
            ax.fill_between([p[0] for p in banded], low, high, color=look["color"], alpha=0.12, linewidth=0)
    _scales(ax, figure)
    for rule in figure.rules:
        if rule.slope:
            ends = ax.get_xlim()
            ax.plot(ends, [rule.slope * end for end in ends], "--", color=QUIET, linewidth=0.9, label=rule.label)
        else:
            ax.axhline(rule.y, linestyle="--", color=QUIET, linewidth=0.9, label=rule.label)
    ax.set_xlabel(figure.x.title)
    ax.set_ylabel(figure.y.title)


def _drawable(figure: Figure, point: list[float]) -> bool:
    return (figure.y.scale != "log" or point[1] > 0) and (figure.x.scale != "log" or point[0] > 0)


def _scales(ax: Any, figure: Figure) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    ax.set_xscale(figure.x.scale)
    ax.set_yscale(figure.y.scale)
    if figure.x.label == "learners":
        ax.xaxis.set_major_locator(FixedLocator(sorted({p[0] for s in figure.series for p in s.points})))
        ax.xaxis.set_minor_locator(NullLocator())
    for axis, own in ((ax.xaxis, figure.x), (ax.yaxis, figure.y)):
        if own.scale == "log":
            if own.label != "learners":
                axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(plain)
            axis.set_minor_formatter(NullFormatter())
    if figure.y.zero:
        ax.set_ylim(bottom=0)


def _names(ax: Any, labels: list[str]) -> None:
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def _dots(ax: Any, figure: Figure, items: list[Series], strategies: Sequence[str]) -> None:
    ax.set_xscale(figure.x.scale)
    for place, series in enumerate(items):
        look = _look(series.style.strategy, strategies) | {"linestyle": "none"}
        if series.points:
            value, low, high = series.points[0]
            ax.errorbar(value, place, xerr=[[max(value - low, 0.0)], [max(high - value, 0.0)]], capsize=2, **look)
        else:
            ax.text(
                0.02, place, f"× {series.note or 'no data'}", transform=ax.get_yaxis_transform(), va="center", size=7
            )
    _names(ax, [series.label for series in items])
    ax.set_xlabel(figure.x.title)


def _stack(ax: Any, figure: Figure, items: list[Bar], strategies: Sequence[str]) -> None:
    for place, bar in enumerate(items):
        left = 0.0
        for kind, (colour, hatch) in KINDS.items():
            share = bar.parts.get(kind, 0.0)
            ax.barh(place, share, left=left, height=0.6, color=colour, hatch=hatch, edgecolor="#0005", linewidth=0.3,
                    label=kind if place == 0 else None)  # fmt: skip
            left += share
    _names(ax, [bar.label for bar in items])
    ax.set_xlim(0, 100)
    ax.set_xlabel(figure.x.title)


def _ridges(ax: Any, figure: Figure, items: list[Series], strategies: Sequence[str]) -> None:
    for place, series in enumerate(items):
        most = max(p[2] for p in series.points)
        for low, high, share in series.points:
            colour = _look(series.style.strategy, strategies)["color"]
            ax.bar(low, -0.8 * share / most, width=(high - low) * 0.94, bottom=place + 0.4, align="edge", color=colour)
    _names(ax, [series.label for series in items])
    ax.set_xlabel(figure.x.title)


_PAINT: dict[str, Callable[[Any, Figure, list[Any], Sequence[str]], None]] = {
    "lines": _lines,
    "dots": _dots,
    "stack": _stack,
    "ridges": _ridges,
}
