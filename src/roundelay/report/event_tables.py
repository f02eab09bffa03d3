"""Tables of events, of the significance of word error rates, and of software versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roundelay.errors import RoundelayError
from roundelay.report import number_format as say
from roundelay.report.report_data import ReportData
from roundelay.report.tables import Item, Line, Table
from roundelay.study.schema import StrategyRow

LEVEL = 0.05
"""A difference with a smaller adjusted p is called significant."""


def events(data: ReportData) -> Iterator[Table]:
    """Make the table of learners that were lost or joined and of faults, one per clock."""
    for clock in data.clocks:
        lines = []
        for name, cell in data.cells.items():
            details = data.details.get(name)
            if details is None or cell["clock"] != clock:
                continue
            for event in details.events:
                if event["event"] == "fallback":
                    continue
                more = {k: v for k, v in event.items() if k not in ("event", "member", "clock", "time")}
                said = "; ".join(
                    f"{k.replace('_', ' ')}: {v if isinstance(v, str) else json.dumps(v)}" for k, v in more.items()
                )
                items = [Item(name), Item(say.duration(event["time"]), event["time"]), Item(str(event["event"])),
                         Item(str(event.get("member", ""))), Item(said)]  # fmt: skip
                lines.append(Line(items, cell["strategy"], cell["learners"]))
        if lines:
            columns = ["run", f"time, {clock}", "event", "member", "details"]
            caption = "Learners that were killed, lost or joined, and other faults."
            yield Table(f"events-{clock}", f"Events in {clock} time", caption, columns, lines, frozenset({1}))


def holm(values: list[float]) -> list[float]:
    """Adjust probabilities for their number (Holm, 1979); the order is kept."""
    order = sorted(range(len(values)), key=values.__getitem__)
    adjusted, largest = [0.0] * len(values), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, values[index] * (len(values) - place)))
        adjusted[index] = largest
    return adjusted


def significance(data: ReportData) -> Iterator[Table]:
    """Make the table of pairs of word error rates: within each panel, the first decoded seed of each row."""
    found: list[tuple[str, StrategyRow, StrategyRow, str, Any]] = []
    wrong: list[str] = []
    for facet, rows in _panels(data).items():
        decoded = [(row, name, folder) for row in rows for name, folder in _decoded(data, row)]
        for i, (row, name, folder) in enumerate(decoded):
            for other, other_name, other_folder in decoded[i + 1 :]:
                if name == other_name and row is not other:
                    compared = _compare(folder, other_folder, wrong)
                    if compared is not None:
                        found.append((facet, row, other, name, compared))
    if not found and not wrong:
        return
    adjusted = holm([each.p for *_, each in found])
    ordered = sorted(zip(found, adjusted, strict=True), key=lambda pair: pair[1])  # in order if they are equal
    lines = [_pair(data, *each, p) for each, p in ordered]
    differ = sum(p < LEVEL for p in adjusted)
    note = f" Could not compare: {'; '.join(dict.fromkeys(wrong))}." if wrong else ""
    yield Table(
        "significance",
        "Significance of differences in word error rate",
        "Paired bootstrap over utterances, 10 000 samples (Bisani and Ney, 2004); p is adjusted for the number of "
        f"pairs (Holm, 1979). It compares utterances of one run each, not seeds.{note}",
        ["better", "WER, %", "worse", "WER, % ", "difference", "95 % interval", "p, adjusted", "verdict", "where"],
        lines,
        frozenset({1, 3, 4, 5, 6}),
        fold=differ,
        folded=f"{say.count(len(lines) - differ, 'pair')} whose difference may be chance",
    )


def _panels(data: ReportData) -> dict[str, list[StrategyRow]]:
    panels: dict[str, list[StrategyRow]] = {}
    for row, facet, _, _ in data.panels():
        if row["wer"] is not None:
            panels.setdefault(facet, []).append(row)
    return panels


def _decoded(data: ReportData, row: StrategyRow) -> Iterator[tuple[str, Path]]:
    for _, details in data.runs(row):
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
    data: ReportData, facet: str, row: StrategyRow, other: StrategyRow, name: str, compared: Any, p: float
) -> Line:
    first, second, gap = compared.first, compared.second, compared.difference
    low, high = compared.interval
    if gap < 0:
        row, other, first, second, gap, low, high = other, row, second, first, -gap, -high, -low
    verdict = Item("differ", tone="good") if p < LEVEL else Item("not significant", tone="quiet")
    items = [
        Item(_name(data, row, facet)), Item(say.number(first), first), Item(_name(data, other, facet)),
        Item(say.number(second), second), Item(say.number(gap, 3), gap),
        Item(f"{say.number(low, 3)} to {say.number(high, 3)}"),
        Item("< 0.001" if p < 0.001 else say.number(p, 2), p), verdict, Item(f"{facet}, {name}"),
    ]  # fmt: skip
    return Line(items, row["strategy"], row["learners"])


def _name(data: ReportData, row: StrategyRow, facet: str) -> str:
    """Return the name of a row in a panel; the one learner to compare with is from another panel."""
    return data.label(row) if data.facet(row) == facet else f"{data.label(row)}, {say.learners(row['learners'])}"


def origin(data: ReportData) -> Iterator[Table]:
    """Make the table of software versions and commits."""
    seen: dict[tuple[str, ...], int] = {}
    keys = ("roundelay", "commit", "torch", "python")
    for details in data.details.values():
        said = tuple(str(details.about.get(key, "unknown")) for key in keys)
        seen[said] = seen.get(said, 0) + 1
    if seen:
        lines = [Line([*(Item(text) for text in said), Item(str(n), float(n))]) for said, n in seen.items()]
        yield Table(
            "origin", "Software versions", "Versions that made the runs.", [*keys, "runs"], lines, frozenset({4})
        )
