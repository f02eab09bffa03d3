"""All that a report is made of: the summary, each run's details, and what tells rows apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from roundelay.report import number_format as words
from roundelay.report.figure_spec import Style
from roundelay.runs.history import Details
from roundelay.runs.target import Target
from roundelay.study.schema import CellResult, StrategyRow, Summary

__all__ = ["ReportData"]

ALONE = "one learner"
"""The name of the reference that is drawn in every panel."""
OUTSIDE = "†"
"""Follows a strategy that could not run as its paper has it."""


@dataclass(frozen=True)
class ReportData:
    """The summary of a study or of loose runs, with the details of every run by its cell's name."""

    summary: Summary
    details: dict[str, Details]
    target: Target | None

    @cached_property
    def rows(self) -> list[StrategyRow]:
        """Every row, as the summary orders them."""
        return list(self.summary["rows"])

    @cached_property
    def cells(self) -> dict[str, CellResult]:
        """Every run by its name."""
        return {cell["name"]: cell for cell in self.summary["cells"]}

    @cached_property
    def strategies(self) -> list[str]:
        """Every strategy, each in the place that its colour, dash and marker go by."""
        return list(dict.fromkeys(sorted(cell["strategy"] for cell in self.summary["cells"])))

    @cached_property
    def counts(self) -> list[int]:
        """Every number of learners."""
        return sorted({cell["learners"] for cell in self.summary["cells"]})

    @cached_property
    def clocks(self) -> list[str]:
        """Every clock that times go by."""
        return [clock for clock in ("virtual", "wall") if any(cell["clock"] == clock for cell in self.cells.values())]

    def problems(self, cell: CellResult) -> list[str]:
        """Return what is wrong with a run's files, each once."""
        return list(dict.fromkeys(self.details[cell["name"]].problems)) if cell["name"] in self.details else []

    def runs(self, row: StrategyRow) -> Iterator[tuple[CellResult, Details]]:
        """Yield the runs of a row, with what is known of each."""
        for name in row["cells"]:
            if name in self.cells and name in self.details:
                yield self.cells[name], self.details[name]

    @cached_property
    def _varying(self) -> list[str]:
        said = {
            "cluster": {row["cluster"] for row in self.rows},
            "model": {row["model"] for row in self.rows},
            "on": {row["on"] for row in self.rows},
        }
        varying = [key for key, values in said.items() if len(values) > 1]
        told = len(said["cluster"]) == len({(row["cluster"], row["on"]) for row in self.rows})
        return [key for key in varying if key != "on" or not told]  # a cluster that tells where it runs is enough

    def place(self, row: StrategyRow) -> str:
        """Say where a row was run, in as many words as tell places apart; none where there is one place."""
        said = {"cluster": row["cluster"], "model": row["model"], "on": row["on"]}
        return ", ".join(said[key] for key in self._varying)

    @cached_property
    def places(self) -> list[str]:
        """Every place, in the order of the study."""
        return list(dict.fromkeys(self.place(row) for row in self.rows))

    def facet(self, row: StrategyRow) -> str:
        """Name the panel of a row: its learners and its place."""
        return ", ".join(part for part in (words.learners(row["learners"]), self.place(row)) if part)

    @cached_property
    def _alike(self) -> Counter[tuple[str, str]]:
        return Counter((row["strategy"], self.facet(row)) for row in self.rows)

    def label(self, row: StrategyRow) -> str:
        """Name a row within its panel: by its strategy, and by a run of it where that is not enough."""
        name = f"{row['strategy']} {OUTSIDE}" if row["regime"] else row["strategy"]
        if self._alike[row["strategy"], self.facet(row)] > 1 and row["cells"]:
            return f"{name} ({row['cells'][0]})"
        return name

    def style(self, row: StrategyRow, facet: str | None = None) -> Style:
        """Return what a row is drawn and filtered by."""
        return Style(row["strategy"], row["learners"], self.facet(row) if facet is None else facet)

    def panels(self, rows: Iterable[StrategyRow] | None = None) -> Iterator[tuple[StrategyRow, str, str, Style]]:
        """Yield rows with panel, label and style, the one learner to compare with in every panel of its place.

        Where one learner was only run as that reference, it has no panel of its own.
        """
        rows = list(self.rows if rows is None else rows)
        alone = {self.place(row): row for row in reversed(rows) if row["learners"] == 1 and self._is_base(row)}
        single = Counter(self.place(row) for row in rows if row["learners"] == 1)
        others = {self.place(row) for row in rows if row["learners"] != 1}
        seen: set[str] = set()
        for row in sorted(rows, key=lambda row: (self.places.index(self.place(row)), row["learners"])):
            place, facet = self.place(row), self.facet(row)
            if row["learners"] == 1 and single[place] == 1 and place in others:
                continue
            if facet not in seen and row["learners"] != 1 and place in alone:
                yield alone[place], facet, ALONE, Style(ALONE, 0, facet)
            seen.add(facet)
            yield row, facet, self.label(row), self.style(row)

    def _is_base(self, row: StrategyRow) -> bool:
        single = [r for r in self.rows if r["learners"] == 1 and self.place(r) == self.place(row)]
        return row["strategy"] == self.summary["baseline"] or row["strategy"] == "synchronous" or len(single) == 1
