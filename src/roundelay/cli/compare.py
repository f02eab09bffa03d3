"""``roundelay compare``: run a study of strategies, learners, models, clusters and seeds under one budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from roundelay import config
from roundelay.cli.screen.file_names import complete
from roundelay.cli.screen.study_display import StudyDisplay
from roundelay.included_files import find_file
from roundelay.study.schema import Summary

if TYPE_CHECKING:  # it imports torch
    from roundelay.study.matrix import Matrix

SHOWN: tuple[Literal["title", "target", "budget", "answer", "rows", "trials", "faults"], ...] = (
    "title", "target", "budget", "answer", "rows", "trials", "faults",
)  # fmt: skip
EPILOG = """\b
Examples:
  roundelay compare tiny --out studies/tiny
  roundelay compare tiny --out studies/tiny --jobs 4 --json
  roundelay compare papers --data data/an4 --out studies/papers --set budget.epochs=2
"""


@click.command(epilog=EPILOG)
@click.argument("study", shell_complete=complete("study"))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Study folder; a started study continues.")
@click.option("--jobs", type=int, help="Cells at a time; default: one per core.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Prepared data.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Change a setting of the experiment.")
@click.option("--retry", is_flag=True, help="Repeat cells that failed or diverged.")
@click.option("--dry-run", is_flag=True, help="Print the cells, and compute nothing.")
@click.option("--no-report", is_flag=True, help="Write no report.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(study: str, out: Path, *, as_json: bool, **options: Any) -> None:
    """Compare strategies as STUDY says, each with the same budget of frames and the same number of trials.

    STUDY is a TOML file, or the name of an included one: 'roundelay init --list' shows them.
    If a study was stopped, run the same command to continue.  Finished cells are kept; interrupted ones are repeated.
    """
    from roundelay.report.report_writer import write_report
    from roundelay.study.claims import judge
    from roundelay.study.definition import Study
    from roundelay.study.matrix import expand
    from roundelay.study.scheduler import compare

    asked = Study.read(
        find_file("study", study),
        dict(config.parse_assignment(each) for each in options["assignments"]),
        options["data"],
    )
    if options["dry_run"]:
        _dry_run(expand(asked), as_json=as_json)
        return
    with StudyDisplay() as display:
        found = compare(asked, out, jobs=options["jobs"], retry=options["retry"], watcher=display)
    report = None if options["no_report"] else write_report(out)
    summary = found.summary
    verdict = judge(asked.claim, summary["cells"])[0] if asked.claim is not None else None
    if as_json:
        said: dict[str, Any] = {name: summary[name] for name in SHOWN} | ({"verdict": verdict} if verdict else {})
        said |= {"study": str(out), "report": report and str(report), "computed": len(found.computed)}
        click.echo(json.dumps(said))
        return
    show_answer(summary)
    if asked.claim is not None:
        click.echo(f"The claim: {' '.join(asked.claim.says.split())} By the rule in the file: {verdict}.")
    click.echo(f"{len(found.computed)} cells computed; {report or out}")


def show_answer(summary: Summary) -> None:
    """Print the short answer."""
    answer = summary["answer"]
    for line in [answer["headline"], *answer["sentences"]]:
        click.echo(line)
    for line in answer["changes"]:
        click.echo(f"  - {line}")


def _dry_run(matrix: Matrix, *, as_json: bool) -> None:
    from roundelay.study.matrix import describe

    cells = [describe(cell) for cell in [*matrix.trials, *matrix.cells]]
    if as_json:
        click.echo(json.dumps({"cells": cells, "frames": matrix.frames}))
        return
    for cell in cells:
        rate = "the best trial's rate" if cell["rate"] is None else f"rate {cell['rate']:g}"
        outside = f"  too few blocks: {cell['regime']}" if cell["regime"] else ""
        click.echo(f"{cell['name']}  {cell['frames']} frames  {rate}{outside}")
    click.echo(f"{len(matrix.trials)} trials and {len(matrix.cells)} runs")
