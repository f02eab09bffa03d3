"""The data of a report: the summary, the history of each run, and the labels of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from roundelay.report import number_format as say
from roundelay.report.figure_spec import Style
from roundelay.runs.history import Details
from roundelay.runs.target import Target
from roundelay.study.schema import CellResult, StrategyRow, Summary

ALONE = "one learner"
"""The label of the reference in every panel."""
OUTSIDE = "†"
"""Mark of a strategy with too few blocks for the regime of its paper."""


@dataclass(frozen=True)
class ReportData:
    """The summary of a study or of separate runs, with the history of every run by its cell's name."""

    summary: Summary
    details: dict[str, Details]
    target: Target | None

    @cached_property
    def rows(self) -> list[StrategyRow]:
        """Every row, in the order of the summary."""
        return list(self.summary["rows"])

    @cached_property
    def cells(self) -> dict[str, CellResult]:
        """Every run by its name."""
        return {cell["name"]: cell for cell in self.summary["cells"]}

    @cached_property
    def strategies(self) -> list[str]:
        """Every strategy; its index gives colour, dash and marker."""
        return list(dict.fromkeys(sorted(cell["strategy"] for cell in self.summary["cells"])))

    @cached_property
    def counts(self) -> list[int]:
        """Every number of learners."""
        return sorted({cell["learners"] for cell in self.summary["cells"]})

    @cached_property
    def clocks(self) -> list[str]:
        """Every clock in use."""
        return [clock for clock in ("virtual", "wall") if any(cell["clock"] == clock for cell in self.cells.values())]

    def problems(self, cell: CellResult) -> list[str]:
        """Return the problems of a run's files, each once."""
        return list(dict.fromkeys(self.details[cell["name"]].problems)) if cell["name"] in self.details else []

    def runs(self, row: StrategyRow) -> Iterator[tuple[CellResult, Details]]:
        """Yield the runs of a row, each with its history."""
        for name in row["cells"]:
            if name in self.cells and name in self.details:
                yield self.cells[name], self.details[name]

    def bytes_per_frame(self, row: StrategyRow) -> list[float]:
        """Return the bytes sent per frame trained, of each run of a row that sent any."""
        runs = [details for _, details in self.runs(row)]
        return [run.total_bytes / run.frames for run in runs if run.total_bytes and run.frames]

    @cached_property
    def _varying(self) -> list[str]:
        said = {
            "cluster": {row["cluster"] for row in self.rows},
            "model": {row["model"] for row in self.rows},
            "on": {row["on"] for row in self.rows},
        }
        varying = [key for key, values in said.items() if len(values) > 1]
        told = len(said["cluster"]) == len({(row["cluster"], row["on"]) for row in self.rows})
        return [key for key in varying if key != "on" or not told]  # if the cluster implies it, it is not repeated

    def conditions(self, row: StrategyRow) -> str:
        """Return the conditions of a row, as far as they vary in this report."""
        said = {"cluster": row["cluster"], "model": row["model"], "on": row["on"]}
        return ", ".join(said[key] for key in self._varying)

    @cached_property
    def all_conditions(self) -> list[str]:
        """All conditions, in the order of the study."""
        return list(dict.fromkeys(self.conditions(row) for row in self.rows))

    def facet(self, row: StrategyRow) -> str:
        """Return the panel of a row: its learners and conditions."""
        return ", ".join(part for part in (say.learners(row["learners"]), self.conditions(row)) if part)

    @cached_property
    def _alike(self) -> Counter[tuple[str, str]]:
        return Counter((row["strategy"], self.facet(row)) for row in self.rows)

    def label(self, row: StrategyRow) -> str:
        """Return the label of a row in its panel: its strategy, and one of its runs if that is not unique."""
        name = f"{row['strategy']} {OUTSIDE}" if row["regime"] else row["strategy"]
        if self._alike[row["strategy"], self.facet(row)] > 1 and row["cells"]:
            return f"{name} ({row['cells'][0]})"
        return name

    def style(self, row: StrategyRow, facet: str | None = None) -> Style:
        """Return the style and filters of a row."""
        return Style(row["strategy"], row["learners"], self.facet(row) if facet is None else facet)

    def panels(self, rows: Iterable[StrategyRow] | None = None) -> Iterator[tuple[StrategyRow, str, str, Style]]:
        """Yield rows with panel, label and style; each panel also has the one learner to compare with.

        If one learner was only run as this reference, it has no panel of its own.
        """
        rows = list(self.rows if rows is None else rows)
        alone = {self.conditions(row): row for row in reversed(rows) if row["learners"] == 1 and self._is_base(row)}
        single = Counter(self.conditions(row) for row in rows if row["learners"] == 1)
        others = {self.conditions(row) for row in rows if row["learners"] != 1}
        seen: set[str] = set()
        for row in sorted(rows, key=lambda row: (self.all_conditions.index(self.conditions(row)), row["learners"])):
            place, facet = self.conditions(row), self.facet(row)
            if row["learners"] == 1 and single[place] == 1 and place in others:
                continue
            if facet not in seen and row["learners"] != 1 and place in alone:
                yield alone[place], facet, ALONE, Style(ALONE, 0, facet)
            seen.add(facet)
            yield row, facet, self.label(row), self.style(row)

    def _is_base(self, row: StrategyRow) -> bool:
        single = [r for r in self.rows if r["learners"] == 1 and self.conditions(r) == self.conditions(row)]
        return row["strategy"] == self.summary["baseline"] or row["strategy"] == "synchronous" or len(single) == 1
