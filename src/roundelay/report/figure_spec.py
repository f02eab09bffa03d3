"""The data and texts of a figure: the page draws it in a browser, `paper_figures` draws it for a paper."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Figures = Literal["lines", "dots", "stack", "ridges"]


@dataclass(frozen=True)
class Axis:
    """An axis."""

    label: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    zero: bool = False
    """Whether the axis must begin at zero, as for bars."""

    @property
    def title(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class Style:
    """What gives the colour, dash and marker, and the filters: the strategy and the number of learners."""

    strategy: str
    learners: int
    facet: str = ""
    """The panel."""


@dataclass(frozen=True)
class Series:
    """A line of points ``[x, y]`` or ``[x, y, low, high]``; of `dots`, one point ``[value, low, high]`` or none."""

    style: Style
    label: str
    points: list[list[float]]
    note: str = ""
    """The text instead of a missing point: ``not reached``."""


@dataclass(frozen=True)
class Bar:
    """A bar of parts by name; ``run`` is set if bars of one chosen run are shown."""

    style: Style
    label: str
    parts: dict[str, float]
    run: str = ""


@dataclass(frozen=True)
class Rule:
    """A reference line: level at ``y`` or, with a ``slope``, through the origin."""

    label: str
    y: float = 0.0
    slope: float = 0.0


@dataclass(frozen=True)
class Figure:
    """A figure: its data and its texts."""

    name: str
    """Short, for a file and as an address in the page."""
    title: str
    caption: str
    kind: Figures
    x: Axis
    y: Axis
    series: list[Series] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    clock: str = ""
    """The clock of its times, if it has any: one figure has one clock."""

    @property
    def empty(self) -> bool:
        """Whether it has no data."""
        return not self.bars and not any(series.points or series.note for series in self.series)

    def plain(self) -> dict[str, Any]:
        """Return the figure for JSON."""
        return asdict(self) | {
            "x": asdict(self.x) | {"title": self.x.title},
            "y": asdict(self.y) | {"title": self.y.title},
        }
