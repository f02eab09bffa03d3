"""The page as HTML.  All text from settings, corpora and file names is escaped.

The content security policy names the page's script and style by their hashes: no other script runs, and nothing is
fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from roundelay.report import number_format as say
from roundelay.report.figure_spec import Figure
from roundelay.report.report_data import ReportData
from roundelay.report.tables import Table, to_html
from roundelay.study.schema import Answer

SCRIPTS = ("core.js", "zoom.js", "lines.js", "rows.js", "timeline.js", "page.js")
CERTAIN = {
    "clear": "Clear: ranges over seeds do not overlap",
    "likely": "Likely: every seed agrees",
    "open": "Open: too close, or too few seeds",
    "none": "",
}
KINDS = {"compute": "computing", "communicate": "communicating", "wait": "waiting", "serve": "serving others"}


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    lead: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    timeline: bool = False


def embed(name: str, value: Any) -> str:
    """Return data as an element of the page; no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'


@cache
def _assets() -> tuple[str, str]:
    folder = files("roundelay.report") / "assets"
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return (folder / "report.css").read_text(encoding="utf-8"), f'(() => {{\n"use strict";\n{script}}})();\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(report: ReportData, sections: list[Section], timelines: list[dict[str, Any]]) -> str:
    """Write the whole page."""
    style, script = _assets()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escape(report.summary["title"])
    data = [embed(f"data-{figure.name}", figure.plain()) for section in sections for figure in section.figures]
    data += [embed(f"timeline-{i}", timeline) for i, timeline in enumerate(timelines)]
    data.append(embed("page", _page(report, timelines)))
    main = "".join(_section(section) for section in sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} · Roundelay report</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#results">Skip to the results</a>\n<div class="page">\n{_header(report)}'
        f"{_answer(report)}\n<aside>{_contents(sections)}{_filters(report)}</aside>\n"
        f"<main>{main}{_notes(report)}</main>\n"
        f"<footer>Made by roundelay report from the records of the runs."
        f"</footer>\n</div>\n<noscript><p>Figures are drawn by a script, which does not run here; all tables are above."
        f"</p></noscript>\n{''.join(data)}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _page(report: ReportData, timelines: list[dict[str, Any]]) -> dict[str, Any]:
    runs = [
        {
            "name": each["run"],
            "title": f"{each['strategy']}, {say.learners(each['learners'])} · {each['run']} ({each['clock']} time)",
        }
        for each in timelines
    ]
    order = [(bool(each["events"]), each["strategy"] == report.summary["answer"]["winner"], each["learners"])
             for each in timelines]  # fmt: skip
    first = max(range(len(order)), key=order.__getitem__) if order else 0
    return {"strategies": report.strategies, "counts": report.counts, "runs": runs, "first": first}


def _header(report: ReportData) -> str:
    summary = report.summary
    facts = [
        say.count(len(summary["cells"]), "run"),
        say.count(len(report.strategies), "strategy").replace("strategys", "strategies"),
        f"{_listed(report.counts)} learner{'' if report.counts == [1] else 's'}" if report.counts else "",
        " and ".join(f"{clock} time" for clock in report.clocks),
    ]
    if frames := summary["budget"].get("frames"):
        facts.append(f"{say.number(frames, 7)} frames each")
    return (
        f'<header><p class="kicker">Roundelay report</p><h1>{escape(summary["title"])}</h1>'
        f'<p class="facts">{escape(" · ".join(filter(None, facts)))}</p></header>\n'
    )


def _listed(counts: list[int]) -> str:
    return ", ".join(map(str, counts)) if len(counts) <= 8 else f"{counts[0]} to {counts[-1]}"


def _contents(sections: list[Section]) -> str:
    links = "".join(f'<li><a href="#{s.name}">{escape(s.title)}</a></li>' for s in sections)
    return f'<nav aria-label="Contents"><ol><li><a href="#answer">The answer</a></li>{links}</ol></nav>'


def _filters(report: ReportData) -> str:
    boxes = ""
    for name, title, wanted, style in (
        ("strategies", "Strategies", len(report.strategies) > 1, "chips"),
        ("learners", "Learners", len(report.counts) > 1, "chips row"),
    ):
        if wanted:
            boxes += (
                f'<fieldset class="filter"><legend>{title}<button type="button" id="all-{name}" disabled>show all'
                f'</button></legend><div class="{style}" id="filter-{name}"></div></fieldset>'
            )
    return boxes


def _answer(report: ReportData) -> str:
    summary, answer = report.summary, report.summary["answer"]
    certain = CERTAIN.get(answer["certainty"], "")
    badge = f'<p class="certainty">{escape(certain)}</p>' if certain else ""
    parts = [
        '<section class="answer" id="answer" aria-label="The answer"><h2>The answer</h2>',
        f'<p class="headline">{escape(answer["headline"])}</p>',
        badge,
        *(f'<p class="said">{escape(sentence)}</p>' for sentence in answer["sentences"]),
    ]
    if answer["changes"]:
        items = "".join(f"<li>{escape(change)}</li>" for change in answer["changes"])
        parts.append(f'<div class="turns"><b>What can change this answer</b><ul>{items}</ul></div>')
    parts.append(_warnings(report))
    said = [(group["key"], group["answer"]) for group in summary["groups"] if group["answer"]["headline"]]
    if len(said) > 1 and any(each["winner"] for _, each in said):
        items = "".join(f"<li>{_short(each)}</li>" for _, each in said if each["winner"])
        parts.append(
            f'<details><summary>The answer under each condition</summary><ul class="notes">{items}</ul></details>'
        )
    return "".join(parts) + "</section>"


def _short(answer: Answer) -> str:
    certain = CERTAIN.get(answer["certainty"], "")
    return escape(answer["headline"]) + (f' <span class="quiet">({escape(certain)})</span>' if certain else "")


def _warnings(report: ReportData) -> str:
    summary, said = report.summary, []
    if missing := summary["missing"]:
        named = ", ".join(missing[:6]) + (" …" if len(missing) > 6 else "")
        said.append(f"Not computed yet: {say.count(len(missing), 'run')} of the study ({named}).")
    if summary["faults"]:
        kinds: dict[str, int] = {}
        for fault in summary["faults"]:
            kinds[fault["status"]] = kinds.get(fault["status"], 0) + 1
        listed = ", ".join(f"{n} {status}" for status, n in kinds.items())
        said.append(f"Some runs did not end well: {listed}. See the table of every run.")
    holes = sum(bool(report.problems(cell)) for cell in summary["cells"])
    if holes:
        said.append(f"{say.count(holes, 'run')} with incomplete files: see the notes in the table of every run.")
    return "".join(f'<p class="warn">{escape(line)}</p>' for line in said)


def _section(section: Section) -> str:
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    parts = [f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{lead}']
    early = [figure for figure in section.figures if not any(bar.run for bar in figure.bars)]
    late = [figure for figure in section.figures if any(bar.run for bar in figure.bars)]
    if section.name == "accuracy":
        parts += [*_figures(early), *map(_table, section.tables)]
    else:
        parts += [*map(_table, section.tables), *_figures(early)]
    if section.timeline:
        parts += [_timeline(), *_figures(late)]
    return "".join(parts) + "</section>"


def _figures(figures: list[Figure]) -> list[str]:
    """Return figures; those with one panel stand side by side in pairs."""
    parts: list[str] = []
    waiting: list[str] = []
    for figure in figures:
        facets = {series.style.facet for series in figure.series} | {bar.style.facet for bar in figure.bars}
        if len(facets) == 1 and not any(bar.run for bar in figure.bars):
            waiting.append(_figure(figure))
        else:
            parts += [*_pairs(waiting), _figure(figure)]
            waiting = []
    return [*parts, *_pairs(waiting)]


def _pairs(figures: list[str]) -> list[str]:
    return [f'<div class="pair">{"".join(figures[i : i + 2])}</div>' for i in range(0, len(figures), 2)]


def _table(table: Table) -> str:
    title = f"<h3>{escape(table.title)}</h3>"
    if table.fold is None or table.fold >= len(table.lines):
        return title + to_html(table)
    rest = replace(table, name=f"{table.name}-rest", caption="", lines=table.lines[table.fold :])
    shown = to_html(replace(table, lines=table.lines[: table.fold])) if table.fold else (
        f'<p class="caption">{escape(table.caption)}</p><p>No pair differs significantly.</p>'
    )  # fmt: skip
    return f"{title}{shown}<details><summary>{escape(table.folded)}</summary>{to_html(rest)}</details>"


def _keys(kinds: dict[str, str]) -> str:
    return "".join(
        f'<span class="key"><span class="swatch kind-{kind}"></span>{said}</span>' for kind, said in kinds.items()
    )


def _figure(figure: Figure) -> str:
    keys = _keys(KINDS) if figure.kind == "stack" else ""
    alone = any(bar.run for bar in figure.bars)
    scrolling = " scrolling" if alone else ""
    sizes = Counter(each.style.facet for each in (figure.bars or figure.series))
    rows = max((bar.style.learners for bar in figure.bars), default=1) if alone else max(sizes.values(), default=1)
    return (
        f'<figure id="figure-{figure.name}" data-figure="{figure.name}" data-kind="{figure.kind}" '
        f'data-panels="{len(sizes) or 1}" data-rows="{rows}"><div class="head">'
        f"<h3>{escape(figure.title)}</h3></div><figcaption>{escape(figure.caption)}</figcaption>"
        f'<div class="legend">{keys}</div><div class="frame{scrolling}"></div>'
        f'<details class="numbers"><summary>Numbers</summary></details></figure>'
    )


def _timeline() -> str:
    keys = _keys(KINDS | {"evaluate": "evaluating"})
    return (
        '<div class="run"><label for="run">Show one run</label><select id="run"></select></div>'
        '<figure id="figure-timeline" data-figure="timeline" data-kind="timeline">'
        '<div class="head"><h3>Timeline</h3></div>'
        "<figcaption>Each member's time by kind. Drag to zoom in; arrow keys move, plus and minus zoom, a double click "
        "shows all. Of a long run only a part is shown: the beginning, or the time around the first fault.</figcaption>"
        f'<div class="legend">{keys}</div><div class="frame"></div><p class="part" hidden></p></figure>'
    )


def _notes(report: ReportData) -> str:
    notes = [
        *report.summary["notes"],
        "Virtual time is the simulator's, wall time is real time; no column, axis or ranking has both.",
        "Frames are of all learners together. Times do not include evaluations, but include the wait for the last "
        "learner before each: a straggler costs every strategy a little there.",
        "Waiting is for other learners, communicating is the transfer itself; serving happens beside computing.",
    ]
    target = report.target
    if target is not None and not any("target" in note for note in notes):
        value = say.amount(target["score"], target["value"])
        notes.insert(
            0, f"The target is a held-out {target['score']} of at most {value}; a run above it counts as a miss."
        )
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section id="notes"><h2>How to read this</h2><ul class="notes">{items}</ul></section>'
