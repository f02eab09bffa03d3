"""Tables of a report, written as HTML and as CSV.  A table with times has one clock."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape

from roundelay.report import number_format as say
from roundelay.report.learning_figures import failures
from roundelay.report.report_data import OUTSIDE, ReportData
from roundelay.study.schema import CellResult, Spread, StrategyRow


@dataclass(frozen=True)
class Item:
    """The text of a table's cell, and its number for sorting and export, if it has one."""

    text: str
    value: float | None = None
    tone: str = ""
    """``good``, ``bad`` or ``quiet``; the text says the same."""
    more: str = ""
    """Small text below, such as a range."""


@dataclass(frozen=True)
class Line:
    """A row, with the values of its filters."""

    items: list[Item]
    strategy: str = ""
    learners: int = 0


@dataclass(frozen=True)
class Table:
    """A table: its name for a file, its heading, and its lines."""

    name: str
    title: str
    caption: str
    columns: list[str]
    lines: list[Line] = field(default_factory=list)
    numeric: frozenset[int] = frozenset()
    fold: int | None = None
    """The page folds away the lines from this one on; None: it shows all."""
    folded: str = ""
    """What the lines that are folded away are."""


def to_csv(table: Table) -> str:
    """Write numbers if cells have them, else the text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for line in table.lines:
        writer.writerow([_harmless(item.text) if item.value is None else repr(item.value) for item in line.items])
    return out.getvalue()


def _harmless(text: str) -> str:
    """Mark a text that begins like a formula, so that a spreadsheet does not run it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def to_html(table: Table) -> str:
    """Write the table with all text escaped."""
    head = "".join(
        f"<th scope=col{' class=num' if i in table.numeric else ''}><button type=button>{escape(name)}</button></th>"
        for i, name in enumerate(table.columns)
    )
    body = "".join(_tr(table, line) for line in table.lines)
    return (
        f'<p class="caption" id="about-{escape(table.name)}">{escape(table.caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table id="table-{escape(table.name)}" aria-label="{escape(table.title)}" '
        f'aria-describedby="about-{escape(table.name)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _tr(table: Table, line: Line) -> str:
    cells = []
    for i, item in enumerate(line.items):
        names = [name for name in ("num" if i in table.numeric else "", item.tone) if name]
        value = "" if item.value is None else f' data-value="{item.value!r}"'
        tag = 'th scope="row"' if i == 0 else "td"
        shown = f' class="{" ".join(names)}"' if names else ""
        more = f"<small>{escape(item.more)}</small>" if item.more else ""
        cells.append(f"<{tag}{shown}{value}>{escape(item.text)}{more}</{tag.partition(' ')[0]}>")
    return f'<tr data-strategy="{escape(line.strategy)}" data-learners="{line.learners}">{"".join(cells)}</tr>'


def _of(spread: Spread | None, name: str = "", *, unit: str = "") -> Item:
    if spread is None:
        return Item("–")
    text, _, ends = say.range_of(spread, name, unit=unit).partition(" [")
    return Item(text, spread["median"], more=ends.rstrip("]").replace(", ", " to "))


def _share(data: ReportData, row: StrategyRow, kind: str) -> Item:
    known = [own.get(kind, 0.0) for _, details in data.runs(row) if (own := details.shares())]
    share = sum(known) / len(known) if known else None
    return Item(say.percent(share, 2), share)


def _bytes(data: ReportData, row: StrategyRow) -> Item:
    known = data.bytes_per_frame(row)
    each = sum(known) / len(known) if known else None
    return Item(say.size(each), each)


def _state(row: StrategyRow) -> Item:
    if row["regime"]:
        return Item("too few blocks: not ranked", tone="quiet", more=row["regime"])
    wrong = failures(row)
    return Item(wrong, tone="bad") if wrong else Item("done", tone="quiet")


def results(data: ReportData) -> Iterator[Table]:
    """Make the table of results, one per clock."""
    for clock in data.clocks:
        rows = [row for row in data.rows if row["clock"] == clock]
        if not rows:
            continue
        rows.sort(key=lambda row: (data.all_conditions.index(data.conditions(row)), -row["learners"],
                                   row["rank"] or math.inf, row["strategy"]))  # fmt: skip
        columns = _columns(data, rows, clock)
        yield Table(
            f"results-{clock}",
            f"Results in {clock} time",
            f"Medians over seeds with their range; all times are {clock} time."
            + (
                f" {OUTSIDE} too few blocks for the regime of its paper: shown, not ranked."
                if any(r["regime"] for r in rows)
                else ""
            ),
            [name for name, _ in columns],
            [Line([make(row) for _, make in columns], row["strategy"], row["learners"]) for row in rows],
            frozenset(i for i, (name, _) in enumerate(columns) if name not in ("strategy", "where", "state")),
        )


Column = tuple[str, Callable[[StrategyRow], Item]]


def _columns(data: ReportData, rows: list[StrategyRow], clock: str) -> list[Column]:
    columns: list[Column] = [
        ("strategy", lambda row: Item(data.label(row))),
        ("learners", lambda row: Item(str(row["learners"]), float(row["learners"]))),
    ]
    if any(failures(row) or row["regime"] for row in rows):
        columns.append(("state", _state))
    if any(data.conditions(row) for row in rows):
        columns.append(("where", lambda row: Item(data.conditions(row))))
    if any(row["rank"] is not None for row in rows):
        columns.append(("rank", lambda row: Item(str(row["rank"] or "–"), row["rank"])))
    if any(row["wer"] for row in rows):
        columns.append(("WER, %", lambda row: _of(row["wer"])))
    for name, heading in (("error", "frame error"), ("frame_error", "frame error"), ("loss", "held-out loss")):
        if any(name in row["scores"] for row in rows):
            columns.append((heading, lambda row, name=name: _of(row["scores"].get(name), name)))  # type: ignore[misc]
    if data.target is not None:
        columns += [
            (f"time to target, {clock}", _to_target),
            ("speed-up to target", lambda row: Item(say.number(row["speedup"], 3), row["speedup"])),
        ]
    columns += [
        (f"time, {clock}", lambda row: _of(row["seconds"], unit="seconds")),
        ("frames per second", lambda row: Item(say.number(row["frames_per_second"]["median"], 3),
                                             row["frames_per_second"]["median"])),
        ("speed-up", lambda row: Item(say.number(row["throughput_speedup"], 3), row["throughput_speedup"])),
        ("efficiency", lambda row: Item(say.percent(row["throughput_efficiency"], 3), row["throughput_efficiency"])),
        ("waiting", lambda row: _share(data, row, "wait")),
        ("bytes per frame", lambda row: _bytes(data, row)),
        ("seeds", lambda row: Item(str(len(row["cells"])), float(len(row["cells"])))),
    ]  # fmt: skip
    return columns


def _to_target(row: StrategyRow) -> Item:
    if row["time"]["median"] is None:
        hits = f" ({row['hits']} of {len(row['cells'])} did)" if row["hits"] else ""
        return Item(f"not reached{hits}", tone="bad")
    return _of(row["time"], unit="seconds")


def runs(data: ReportData) -> Iterator[Table]:
    """Make the table of every run, with trials and failures, one per clock."""
    for clock in data.clocks:
        cells = [cell for cell in data.summary["cells"] if cell["clock"] == clock]
        names = sorted({name for cell in cells for name in cell["scores"]})
        yield Table(
            f"runs-{clock}",
            f"Every run in {clock} time",
            "All runs: also trials of learning rates, diverged and interrupted runs, and incomplete records.",
            ["run", "strategy", "learners", "seed", "rate", *names, f"time, {clock}", "state", "notes"],
            [_run(cell, names, data.problems(cell)) for cell in cells],
            frozenset({2, 3, 4, *range(5, 6 + len(names))}),
        )


def _run(cell: CellResult, names: list[str], problems: list[str]) -> Line:
    state = cell["status"] + (" (trial)" if cell["trial"] else "")
    notes = "; ".join(text for text in (cell["error"], *problems, cell["regime"]) if text)
    scores = [Item(say.amount(name, cell["scores"].get(name)), cell["scores"].get(name)) for name in names]
    return Line(
        [
            Item(cell["name"]),
            Item(cell["strategy"]),
            Item(str(cell["learners"]), float(cell["learners"])),
            Item(str(cell["seed"]), float(cell["seed"])),
            Item(say.number(cell["rate"]), cell["rate"]),
            *scores,
            Item(say.duration(cell["seconds"]), cell["seconds"]),
            Item(state, tone="quiet" if cell["status"] == "done" else "bad"),
            Item(notes),
        ],
        cell["strategy"],
        cell["learners"],
    )


def _scoreless(status: str) -> str:
    return status if status != "done" else "no score"


def trials(data: ReportData) -> Iterator[Table]:
    """Make the table of trials for the learning rate."""
    found = data.summary["trials"]
    if not found:
        return
    score = data.target["score"] if data.target else "score"
    lines = []
    for trial in found:
        tried = "; ".join(
            f"{say.number(rate)}: {say.amount(score, value) if value is not None else _scoreless(status)}"
            for rate, value, status in zip(trial["rates"], trial["scores"], trial["statuses"], strict=True)
        )
        edge = "at the edge of the grid: try a wider one" if trial["at_edge"] else ""
        items = [
            Item(trial["strategy"]), Item(str(trial["learners"]), float(trial["learners"])), Item(trial["cluster"]),
            Item(trial["model"]), Item(tried), Item(say.number(trial["chosen"]), trial["chosen"]), Item(edge),
        ]  # fmt: skip
        lines.append(Line(items, trial["strategy"], trial["learners"]))
    columns = ["strategy", "learners", "cluster", "model", f"rate: {score}", "chosen", "notes"]
    caption = "Every strategy had the same number of trials; the learning rate was chosen on dev."
    yield Table("trials", "Tuning", caption, columns, lines, frozenset({1, 5}))
