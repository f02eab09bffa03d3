"""The report: one page that needs nothing else, and the same as JSON, CSV and figures beside it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from roundelay.errors import SettingsError
from roundelay.files import write_text
from roundelay.report import event_tables as happenings
from roundelay.report import learning_figures as learning
from roundelay.report import speed_figures as speeds
from roundelay.report import tables
from roundelay.report import time_figures as inside
from roundelay.report.figure_spec import Figure
from roundelay.report.html_page import Section, render
from roundelay.report.report_data import ReportData
from roundelay.report.run_summary import run_names, summarise_runs
from roundelay.runs.history import read_details
from roundelay.runs.target import Target
from roundelay.study.summary import summarise_study

__all__ = ["find_runs", "make_board", "write_report"]

_log = logging.getLogger(__name__)


def write_report(
    folder: Path | Sequence[Path],
    out: Path | None = None,
    *,
    target: Target | None = None,
    figures: Sequence[str] = (),
    watch: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write ``report.html`` of a study's folder, or of one or several runs' folders; return where it is.

    It goes into ``out``, by default the folder itself, with ``report.json`` and a folder ``report`` of CSV files beside
    it.  ``figures`` are formats, such as ``svg`` and ``png``, in which every figure is drawn for a paper as well; that
    takes the extra ``plot``.  A ``target`` is for runs that are no study: a study has its own.  ``watch`` is told what
    is being done.
    """
    folders = [folder] if isinstance(folder, Path) else list(folder)
    if out is None:
        if len(folders) != 1:
            raise SettingsError(f"a report of {len(folders)} folders has no place of its own; --out DIR gives it one")
        out = folders[0]
    board = make_board(folders, target, watch)
    watch("making figures and tables")
    sections = make_sections(board)
    beside = out / "report"
    beside.mkdir(parents=True, exist_ok=True)
    every = [figure for section in sections for figure in section.figures]
    listed = [table for section in sections for table in section.tables]
    for table in listed:
        write_text(beside / f"{table.name}.csv", tables.to_csv(table))
    whole = {"summary": board.summary, "figures": [figure.plain() for figure in every]}
    write_text(out / "report.json", json.dumps(clean(whole), separators=(",", ":")) + "\n")
    if figures:
        from roundelay.report.paper_figures import draw_all

        draw_all(every, board.strategies, beside, figures, watch)
    page = out / "report.html"
    write_text(page, render(board, sections, inside.timelines(board)))
    _log.debug("%s: %d figures, %d tables", page, len(every), len(listed))
    return page


def make_board(
    folders: Sequence[Path], target: Target | None = None, watch: Callable[[str], None] = lambda _: None
) -> ReportData:
    """Read a study, or runs, with all their details."""
    if len(folders) == 1 and (folders[0] / "study.json").exists():
        summary, runs = summarise_study(folders[0], watch)
        return ReportData(summary, runs, summary["target"])
    found, runs = find_runs(folders), {}
    for place, (name, path) in enumerate(zip(run_names(found), found, strict=True), start=1):
        watch(f"reading run {place} of {len(found)}: {name}")
        runs[name] = read_details(path)
    return ReportData(summarise_runs(runs, target), runs, target)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Return the runs among folders and right below them, in order, each once."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise SettingsError(f"{folder}: no such folder; give it what 'roundelay train --out' has written")
        inner = [folder] if _is_run(folder) else sorted(path for path in folder.iterdir() if _is_run(path))
        if not inner:
            raise SettingsError(
                f"{folder}: neither a run nor a study, and no run right below it; a run has settings.toml and a record"
            )
        found |= dict.fromkeys(inner)
    return list(found)


def _is_run(path: Path) -> bool:
    names = ("run.json", "settings.toml", "record.jsonl", "cell.json")
    return path.is_dir() and (any((path / name).is_file() for name in names) or any(path.glob("record-*.jsonl")))


def make_sections(board: ReportData) -> list[Section]:
    """Put figures and tables in the order in which one asks for them."""
    made = [
        Section("results", "Results", "Click a heading to sort by it.", [], list(tables.results(board))),
        Section("accuracy", "Accuracy", "What the consensus model gets wrong at the end of the same budget.",
                _good(learning.accuracy(board)), list(happenings.significance(board))),
        Section("learning", "Learning", "How the loss falls, for each frame and for each second.",
                _good(learning.learning(board)), []),
        Section("speed", "Speed", "How fast learners together are, and how soon they arrive.",
                _good([*speeds.speed(board), *speeds.profiles(board)]), []),
        Section("resilience", "Resilience", "What one slow learner does to all.", _good(speeds.resilience(board)), []),
        Section("time", "Where the time goes", "Computing is progress; waiting and communicating are its price.",
                _good(inside.shares(board)), [], timeline=bool(inside.shown_runs(board))),
        Section("apart", "How far learners drift apart", "The price of not waiting is staleness.",
                _good(inside.apart(board)), []),
        Section("traffic", "Traffic", "What a network has to carry.", _good(speeds.traffic(board)), []),
        Section("events", "Events", "What happened to runs besides training.", [], list(happenings.events(board))),
        Section("runs", "Every run", "What all of the above was made of.", [],
                [*tables.trials(board), *tables.runs(board), *happenings.origin(board)]),
    ]  # fmt: skip
    return [section for section in made if section.figures or section.tables or section.timeline]


def _good(figures: Iterable[Figure]) -> list[Figure]:
    return [figure for figure in figures if not figure.empty]


def clean(value: Any) -> Any:
    """Return the same with ``None`` in place of numbers that JSON cannot write."""
    if isinstance(value, dict):
        return {str(key): clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
