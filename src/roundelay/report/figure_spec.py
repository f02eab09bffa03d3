"""What a figure shows, said once: the page draws it in a browser, `drawing` for a paper, `tables` as CSV."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Axis", "Bar", "Figure", "Rule", "Series", "Style"]

Figures = Literal["lines", "dots", "stack", "ridges"]


@dataclass(frozen=True)
class Axis:
    """What an axis counts."""

    label: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    zero: bool = False
    """Whether the axis has to begin at zero, as that of bars does."""

    @property
    def title(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class Style:
    """What is told apart by colour, dash and marker, and filtered by: the strategy, and how many learners."""

    strategy: str
    learners: int
    facet: str = ""
    """The panel it belongs in."""


@dataclass(frozen=True)
class Series:
    """A line of points ``[x, y]`` or ``[x, y, low, high]``; of `dots`, one point ``[value, low, high]`` or none."""

    style: Style
    label: str
    points: list[list[float]]
    note: str = ""
    """What stands in place of a point that is not there: ``not reached``."""


@dataclass(frozen=True)
class Bar:
    """A bar made of parts, by their names; ``run`` says of which run, where one of several is shown."""

    style: Style
    label: str
    parts: dict[str, float]
    run: str = ""


@dataclass(frozen=True)
class Rule:
    """A line to compare with: level at ``y``, or, when it has a ``slope``, through the origin."""

    label: str
    y: float = 0.0
    slope: float = 0.0


@dataclass(frozen=True)
class Figure:
    """A figure: its data and its words."""

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
    """Of the times in it, where there are any: one figure has one clock."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.bars and not any(series.points or series.note for series in self.series)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {
            "x": asdict(self.x) | {"title": self.x.title},
            "y": asdict(self.y) | {"title": self.y.title},
        }
