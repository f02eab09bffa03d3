"""Rebuild the page of a claim: python benchmarks/reproduce.py C09 [--studies DIR] [--jobs N].

It runs the study of experiments/claims/C09.toml (or continues it), judges the claim by the checks in the file, and
writes docs/results/C09.md and C09.json, and the table in docs/results.md (with --table only that).  If there was a
C09.json, it says whether all figures agree with it to the bit.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roundelay import config
from roundelay.study.claims import CheckResult, PaperClaim, judge
from roundelay.study.definition import Study
from roundelay.study.scheduler import compare
from roundelay.study.statistics import spread

ROOT = Path(__file__).resolve().parents[1]
CLAIMS, PAGES, RESULTS = ROOT / "experiments" / "claims", ROOT / "docs" / "results", ROOT / "docs" / "results.md"
BEGIN, END = "<!-- claims: made by benchmarks/reproduce.py -->", "<!-- end of claims -->"
KEPT = ("name", "strategy", "learners", "model", "cluster", "seed", "trial", "rate", "status")
Record = dict[str, Any]


def try_study(path: Path, folder: Path, jobs: int, data: Path | None) -> Record:
    """Run a claim's study, and return its record."""
    study = Study.read(path, data=data)
    assert study.claim is not None, f"{path} has no [claim]"
    cells: Sequence[Mapping[str, Any]] = compare(study, folder, jobs=jobs).summary["cells"]
    verdict, results = judge(study.claim, cells)
    return {
        "title": study.title,
        "verdict": verdict,
        "checks": [_seen(result) for result in results],
        "cells": [_figures(cell) for cell in cells],
    }


def _figures(cell: Mapping[str, Any]) -> Record:
    wer = {"wer": cell["wer"]["wer"]} if cell["wer"] else {}
    more = {"seconds": cell["seconds"], "reached_seconds": cell["reached_seconds"], "scores": cell["scores"]}
    return {name: cell[name] for name in KEPT} | more | wer


def _seen(result: CheckResult) -> Record:
    check, bounds = result.check, []
    if check.at_least is not None:
        bounds.append(f"at least {check.at_least:g}")
    if check.at_most is not None:
        bounds.append(f"at most {check.at_most:g}")
    than = f"{check.of} / {check.than}" if check.what != "lost" else f"{check.of} minus {check.than}"
    if check.versus is not None:
        than += f", divided by {check.versus.of} / {check.versus.than}"
    return {
        "says": check.says, "what": check.what, "than": than, "wanted": " and ".join(bounds), "median": result.median,
        "low": result.low, "high": result.high, "passed": result.passed,
    }  # fmt: skip


def try_program(table: Mapping[str, Any]) -> Record:
    """Run a program of benchmarks that predicts published speed-ups, and return its record."""
    command = [sys.executable, str(ROOT / "benchmarks" / table["program"]), "--json"]
    made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    checks = []
    for each in made["speedups"]:
        ratio = each["predicted"] / each["published"]
        says, than = (
            f"{each['by']}, {each['gpus']} GPUs",
            f"{each['predicted']:.2f} predicted / {each['published']:.2f}",
        )
        checks.append(
            {"says": says, "what": "speed-up", "than": than, "wanted": "at least 0.9 and at most 1.1", "median": ratio,
             "low": ratio, "high": ratio, "passed": 0.9 <= ratio <= 1.1}
        )  # fmt: skip
    passed = sum(check["passed"] for check in checks)
    verdict = "holds" if passed == len(checks) else "in part" if passed else "does not hold here"
    return {"title": table["title"], "verdict": verdict, "checks": checks, "cells": []}


def page(name: str, claim: PaperClaim, record: Mapping[str, Any]) -> str:
    """Write the page of a claim from its record."""
    lines = [
        f"# {label(name)}: {record['title']}", "", f"**{said(record['verdict'])}.**", "",
        f"*The claim* ({claim.source.strip()}): {_flat(claim.says)}", "",
        f"*Expected, written before the run*: {_flat(claim.hypothesis)}", "",
        f"*Rule, written before the run*: {_flat(claim.rule)}", "",
        "## What was seen", "",
        "A figure of one row divided by that of another, seed by seed: the median, and the range over seeds.", "",
        "| check | figure | wanted | seen | passed |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for check in record["checks"]:
        seen = "both lost"
        if check["median"] is not None:
            seen = f"{check['median']:.4g} ({check['low']:.4g} to {check['high']:.4g})"
        yes = "yes" if check["passed"] else "no"
        lines.append(f"| {check['says']} | {check['what']}: {check['than']} | {check['wanted']} | {seen} | {yes} |")
    runs = [cell for cell in record["cells"] if not cell["trial"]]
    if runs:
        lines += ["", "## All runs", "", *_table(runs), *_trials(record["cells"])]
    lines += [
        "", "## What this does not show", "", _flat(claim.limits), "",
        "## Again", "", "```", f"make reproduce CLAIM={name}", "```", "",
        f"The settings are in [{name}.toml](../../experiments/claims/{name}.toml), the figures of every run in",
        f"[{name}.json]({name}.json). Made with commit {record['commit'][:12]}, torch {record['torch']}.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _flat(text: str) -> str:
    return " ".join(text.split())


def label(name: str) -> str:
    """Return how the papers' list calls a claim: C9 for C09."""
    return f"{name[0]}{int(name[1:])}"


def said(verdict: str) -> str:
    """Return a verdict with a capital letter."""
    return verdict[:1].upper() + verdict[1:]


def _table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in runs:
        rows.setdefault((cell["strategy"], str(cell["learners"]), cell["model"], cell["cluster"]), []).append(cell)
    names = list(dict.fromkeys(score for cell in runs for score in cell["scores"]))
    head = ["strategy", "learners", "model", "cluster", "rate", "seeds", "lost", *names, "seconds"]
    lines = [
        f"Medians over seeds, with the range; seconds are virtual. {len(runs)} runs.", "",
        f"| {' | '.join(head)} |", f"|{'---|' * len(head)}",
    ]  # fmt: skip
    for key, cells in rows.items():
        values = [[cell["scores"].get(score) for cell in cells] for score in names]
        figures = [_spread(each) for each in [*values, [cell["seconds"] for cell in cells]]]
        lost = sum(cell["status"] != "done" for cell in cells)
        rate = f"{cells[0]['rate']:g}" if cells[0]["rate"] is not None else ""
        lines.append(f"| {' | '.join([*key, rate, str(len(cells)), str(lost), *figures])} |")
    return lines


def _trials(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    trials = [cell for cell in cells if cell["trial"]]
    if not trials:
        return []
    shown = [f"{cell['name']} {cell['scores'].get('loss', float('inf')):.4g}" for cell in trials]
    return ["", f"Trials that chose the rates, and the loss at their end: {', '.join(shown)}."]


def _spread(values: Sequence[float | None]) -> str:
    found = spread(values)
    if found["median"] is None:
        return "lost"
    low, high = (f"{found[end]:.4g}" if found[end] is not None else "lost" for end in ("low", "high"))
    return f"{found['median']:.4g} ({low} to {high})" if len(values) > 1 else f"{found['median']:.4g}"


def summary_table() -> str:
    """Return the table of all claims, from the files and the records that are there."""
    lines = ["| | claim | verdict | checks passed | command |", "|---|---|---|---|---|"]
    for path in sorted(CLAIMS.glob("C[0-9][0-9].toml")):
        name, table = path.stem, tomllib.loads(path.read_text(encoding="utf-8"))
        record = read_record(name)
        checks = record.get("checks", [])
        first = f"[{label(name)}](results/{name}.md)" if record else label(name)
        verdict = f"**{record['verdict']}**" if record else "not run yet"
        passed = f"{sum(bool(check['passed']) for check in checks)} of {len(checks)}" if record else ""
        lines.append(
            f"| {first} | {_flat(table['claim']['says'])} | {verdict} | {passed} | `make reproduce CLAIM={name}` |"
        )
    return "\n".join(lines)


def write_table() -> None:
    """Put the table of all claims into docs/results.md."""
    text = RESULTS.read_text(encoding="utf-8")
    inside = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert inside.search(text), f"{RESULTS} has no place for the table: {BEGIN}"
    RESULTS.write_text(inside.sub(lambda _: f"{BEGIN}\n{summary_table()}\n{END}", text), encoding="utf-8")


def read_record(name: str) -> Record:
    """Return the record of a claim that was tried, or nothing."""
    path = PAGES / f"{name}.json"
    found: Record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs to the bit between two records: runs by their names, and checks."""
    before, now = ({cell["name"]: cell for cell in record["cells"]} for record in (old, new))
    found = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if not found and old["checks"] != new["checks"]:
        found = ["the checks"]
    return found


def reproduce(name: str, studies: Path, jobs: int, data: Path | None = None) -> bool:
    """Try a claim and write its page; return whether the figures are those of the record, if there was one."""
    path = CLAIMS / f"{name}.toml"
    if not path.exists():
        known = ", ".join(each.stem for each in sorted(CLAIMS.glob("C[0-9][0-9].toml")))
        raise SystemExit(f"reproduce: unknown claim {name!r}; use one of {known}")
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    claim = config.build(PaperClaim, table["claim"], str(path))
    record = try_program(table) if "program" in table else try_study(path, studies / name, jobs, data)
    old, new = read_record(name), json.loads(json.dumps(record))
    same = not old or not (changed := differences(old, new))
    if old:
        print("all figures agree to the bit" if same else f"{len(changed)} differ from the record: {changed[0]} …")
    again = old and old["cells"] == new["cells"] and (same or new["cells"])  # judged again, not computed again
    record |= {key: old[key] for key in ("commit", "torch")} if again else _versions()
    PAGES.mkdir(exist_ok=True)
    (PAGES / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (PAGES / f"{name}.md").write_text(page(name, claim, record), encoding="utf-8")
    print(f"{label(name)}: {record['verdict']}; docs/results/{name}.md")
    return same


def _versions() -> Record:
    from roundelay.runs.run_folder import versions

    found = versions()
    return {"commit": found.get("commit") or "unknown", "torch": found["torch"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="C01 to C23")
    parser.add_argument("--studies", type=Path, default=ROOT / "build" / "claims", help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--data", type=Path, help="prepared data, for claims about speech")
    parser.add_argument("--table", action="store_true", help="only write the table in docs/results.md")
    given = parser.parse_args()
    if not given.claims and not given.table:
        parser.error("give a claim: make reproduce CLAIM=C09")
    same = [reproduce(name, given.studies, given.jobs, given.data) for name in given.claims]
    write_table()
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
