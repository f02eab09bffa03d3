"""Write a report: one page without other files, and the same data as JSON, CSV and figures."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from roundelay.errors import SettingsError
from roundelay.files import inside, make_inside, write_text
from roundelay.report import event_tables, learning_figures, speed_figures, tables, time_figures
from roundelay.report.figure_spec import Figure
from roundelay.report.html_page import Section, render
from roundelay.report.report_data import ReportData
from roundelay.report.run_summary import run_names, summarise_runs
from roundelay.runs.history import read_details
from roundelay.runs.target import Target
from roundelay.study.summary import summarise_study

_log = logging.getLogger(__name__)


def write_report(
    folder: Path | Sequence[Path],
    out: Path | None = None,
    *,
    target: Target | None = None,
    figures: Sequence[str] = (),
    watch: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write ``report.html`` about a study or about one or several runs; return its path.

    It is written to ``out``, by default the folder itself, with ``report.json`` and a folder ``report`` of CSV files
    beside it.  ``figures`` are formats, such as ``svg`` and ``png``, in which every figure is also drawn for a paper;
    this needs the extra ``plot``.  ``target`` is for separate runs: a study has its own.  ``watch`` is called with the
    current step.
    """
    folders = [folder] if isinstance(folder, Path) else list(folder)
    if out is None:
        if len(folders) != 1:
            raise SettingsError(f"give --out DIR: the report of {len(folders)} folders needs one")
        out = folders[0]
    data = make_report_data(folders, target, watch)
    watch("making figures and tables")
    sections = make_sections(data)
    beside = make_inside(out, "report")
    every = [figure for section in sections for figure in section.figures]
    listed = [table for section in sections for table in section.tables]
    for table in listed:
        write_text(inside(beside, f"{table.name}.csv", what="table"), tables.to_csv(table))
    whole = {"summary": data.summary, "figures": [figure.plain() for figure in every]}
    write_text(out / "report.json", json.dumps(clean(whole), separators=(",", ":")) + "\n")
    if figures:
        from roundelay.report.paper_figures import draw_all

        draw_all(every, data.strategies, beside, figures, watch)
    page = out / "report.html"
    write_text(page, render(data, sections, time_figures.timelines(data)))
    _log.debug("%s: %d figures, %d tables", page, len(every), len(listed))
    return page


def make_report_data(
    folders: Sequence[Path], target: Target | None = None, watch: Callable[[str], None] = lambda _: None
) -> ReportData:
    """Read a study or runs, with the history of each run."""
    if len(folders) == 1 and (folders[0] / "study.json").exists():
        summary, runs = summarise_study(folders[0], watch)
        return ReportData(summary, runs, summary["target"])
    found, runs = find_runs(folders), {}
    for place, (name, path) in enumerate(zip(run_names(found), found, strict=True), start=1):
        watch(f"reading run {place} of {len(found)}: {name}")
        runs[name] = read_details(path)
    return ReportData(summarise_runs(runs, target), runs, target)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Return the runs among folders and directly below them, in order, each once."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise SettingsError(f"{folder}: no such folder; give the --out of 'roundelay train'")
        inner = [folder] if _is_run(folder) else sorted(path for path in folder.iterdir() if _is_run(path))
        if not inner:
            raise SettingsError(
                f"{folder}: neither a run nor a study, and no run directly below; a run has settings.toml and a record"
            )
        found |= dict.fromkeys(inner)
    return list(found)


def _is_run(path: Path) -> bool:
    names = ("run.json", "settings.toml", "record.jsonl", "cell.json")
    return path.is_dir() and (any((path / name).is_file() for name in names) or any(path.glob("record-*.jsonl")))


def make_sections(data: ReportData) -> list[Section]:
    """Return all figures and tables by section."""
    made = [
        Section("learning", "Learning", "Scores by frames trained and by time.",
                _good(learning_figures.learning(data)), []),
        Section("results", "Results", "Click a heading to sort by it.", [], list(tables.results(data))),
        Section("accuracy", "Accuracy", "Error rates of the consensus model, at the end of the same budget.",
                _good(learning_figures.accuracy(data)), list(event_tables.significance(data))),
        Section("speed", "Speed", "Throughput of all learners, and time to the target.",
                _good([*speed_figures.speed(data), *speed_figures.profiles(data)]), []),
        Section("resilience", "Resilience", "Effect of one slow learner on all.",
                _good(speed_figures.resilience(data)), []),
        Section("time", "Where the time goes", "Time of the learners by kind: computing, communicating, waiting.",
                _good(time_figures.shares(data)), [], timeline=bool(time_figures.shown_runs(data))),
        Section("apart", "Staleness and consensus distance", "Strategies that do not wait pay with staleness.",
                _good(time_figures.apart(data)), []),
        Section("traffic", "Traffic", "Bytes sent.", _good(speed_figures.traffic(data)), []),
        Section("events", "Events", "Learners that were lost or joined, and injected faults.", [],
                list(event_tables.events(data))),
        Section("runs", "Every run", "All runs, trials and failures included.", [],
                [*tables.trials(data), *tables.runs(data), *event_tables.origin(data)]),
    ]  # fmt: skip
    return [section for section in made if section.figures or section.tables or section.timeline]


def _good(figures: Iterable[Figure]) -> list[Figure]:
    return [figure for figure in figures if not figure.empty]


def clean(value: Any) -> Any:
    """Return a copy with ``None`` instead of numbers that JSON cannot write."""
    if isinstance(value, dict):
        return {str(key): clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
