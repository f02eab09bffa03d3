"""Tables of what happened to runs and of what can be told apart: events, and significance of word error rates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roundelay.errors import RoundelayError
from roundelay.report import number_format as words
from roundelay.report.report_data import ReportData
from roundelay.report.tables import Item, Line, Table
from roundelay.study.schema import StrategyRow

__all__ = ["events", "holm", "origin", "significance"]


def events(board: ReportData) -> Iterator[Table]:
    """Make the table of learners lost and joined, of faults and the like, one for each clock."""
    for clock in board.clocks:
        lines = []
        for name, cell in board.cells.items():
            details = board.details.get(name)
            if details is None or cell["clock"] != clock:
                continue
            for event in details.events:
                if event["event"] == "fallback":
                    continue
                more = {k: v for k, v in event.items() if k not in ("event", "member", "clock", "time")}
                said = "; ".join(f"{k}: {v if isinstance(v, str) else json.dumps(v)}" for k, v in more.items())
                items = [Item(name), Item(words.duration(event["time"]), event["time"]), Item(str(event["event"])),
                         Item(str(event.get("member", ""))), Item(said)]  # fmt: skip
                lines.append(Line(items, cell["strategy"], cell["learners"]))
        if lines:
            columns = ["run", f"time, {clock}", "event", "member", "what"]
            caption = "Learners killed, lost and joined, and what else was done to a run."
            yield Table(f"events-{clock}", f"Events in {clock} time", caption, columns, lines, frozenset({1}))


def holm(values: list[float]) -> list[float]:
    """Adjust probabilities for how many there are (Holm, 1979), in the order given."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, largest = [0.0] * len(values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, values[index] * (len(values) - place)))
        adjusted[index] = largest
    return adjusted


def significance(board: ReportData) -> Iterator[Table]:
    """Make the table of pairs of word error rates: within each panel, the first seed that was decoded of each."""
    found: list[tuple[str, StrategyRow, StrategyRow, str, Any]] = []
    wrong: list[str] = []
    for facet, rows in _panels(board).items():
        decoded = [(row, name, folder) for row in rows for name, folder in _decoded(board, row)]
        for i, (row, name, folder) in enumerate(decoded):
            for other, other_name, other_folder in decoded[i + 1 :]:
                if name == other_name and row is not other:
                    compared = _compare(folder, other_folder, wrong)
                    if compared is not None:
                        found.append((facet, row, other, name, compared))
    if not found and not wrong:
        return
    adjusted = holm([each.p for *_, each in found])
    lines = [_pair(board, *each, p) for each, p in zip(found, adjusted, strict=True)]
    remark = f" Could not compare: {'; '.join(dict.fromkeys(wrong))}." if wrong else ""
    yield Table(
        "significance",
        "Significance of differences in word error rate",
        "Utterances are drawn in pairs, 10 000 times (Bisani and Ney, 2004); p is adjusted for the number of pairs "
        f"(Holm, 1979). This is about utterances of one run each, not about seeds.{remark}",
        ["better", "WER, %", "worse", "WER, % ", "difference", "95 % interval", "p, adjusted", "verdict", "where"],
        lines,
        frozenset({1, 3, 4, 5, 6}),
    )


def _panels(board: ReportData) -> dict[str, list[StrategyRow]]:
    panels: dict[str, list[StrategyRow]] = {}
    for row, facet, _, _ in board.panels():
        if row["wer"] is not None:
            panels.setdefault(facet, []).append(row)
    return panels


def _decoded(board: ReportData, row: StrategyRow) -> Iterator[tuple[str, Path]]:
    for _, details in board.runs(row):
        folders = [(name, details.folder / "decode" / name) for name in details.decoded]
        if folders:
            yield from ((name, folder) for name, folder in folders if (folder / "utterances.jsonl").is_file())
            return


def _compare(one: Path, other: Path, wrong: list[str]) -> Any:
    from roundelay.speech.decoding.word_error_rate import compare_wer

    try:
        return compare_wer(one, other)
    except (RoundelayError, OSError, ValueError) as error:
        wrong.append(str(error))
        return None


def _pair(
    board: ReportData, facet: str, row: StrategyRow, other: StrategyRow, name: str, compared: Any, p: float
) -> Line:
    first, second, gap = compared.first, compared.second, compared.difference
    low, high = compared.interval
    if gap < 0:
        row, other, first, second, gap, low, high = other, row, second, first, -gap, -high, -low
    verdict = Item("differ", tone="good") if p < 0.05 else Item("may be chance", tone="quiet")
    items = [
        Item(_name(board, row, facet)), Item(words.number(first), first), Item(_name(board, other, facet)),
        Item(words.number(second), second), Item(words.number(gap, 3), gap),
        Item(f"{words.number(low, 3)} to {words.number(high, 3)}"),
        Item("< 0.001" if p < 0.001 else words.number(p, 2), p), verdict, Item(f"{facet}, {name}"),
    ]  # fmt: skip
    return Line(items, row["strategy"], row["learners"])


def _name(board: ReportData, row: StrategyRow, facet: str) -> str:
    """Name a row in a panel; the one learner to compare with comes from another."""
    return board.label(row) if board.facet(row) == facet else f"{board.label(row)}, {words.learners(row['learners'])}"


def origin(board: ReportData) -> Iterator[Table]:
    """Make the table of what code ran: versions and commits."""
    seen: dict[tuple[str, ...], int] = {}
    keys = ("roundelay", "commit", "torch", "python")
    for details in board.details.values():
        said = tuple(str(details.about.get(key, "unknown")) for key in keys)
        seen[said] = seen.get(said, 0) + 1
    if seen:
        lines = [Line([*(Item(text) for text in said), Item(str(n), float(n))]) for said, n in seen.items()]
        yield Table(
            "origin", "What ran", "Versions that the runs were made with.", [*keys, "runs"], lines, frozenset({4})
        )
