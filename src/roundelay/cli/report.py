"""``roundelay report``: one page about a study or runs, with JSON, CSV and figures for a paper."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from roundelay.planning.frames_to_target import parse_target

EPILOG = """\b
Examples:
  roundelay report studies/nine
  roundelay report runs/tiny
  roundelay report runs/bmuf runs/adpsgd --out reports/two
  roundelay report runs --out reports/all --target loss=0.2
  roundelay report studies/nine --figures svg --figures png
"""


@click.command(epilog=EPILOG)
@click.argument(
    "folders", nargs=-1, required=True, metavar="DIR…", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of report.html; default: DIR.")
@click.option("--target", metavar="SCORE=VALUE", help="Target of separate runs; a study has its own.")
@click.option(
    "--figures",
    multiple=True,
    type=click.Choice(("svg", "png", "pdf")),
    help="Also draw every figure as a file for a paper.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    folders: tuple[Path, ...], *, out: Path | None, target: str | None, figures: tuple[str, ...], as_json: bool
) -> None:
    """Write report.html about a study or about runs.

    DIR is a folder from 'roundelay compare' or 'roundelay train', or a folder of such runs.  The page needs no network
    and no other file; report.json and a folder of CSV files are written beside it.
    """
    from roundelay.report.report_writer import write_report

    console = Console(stderr=True, markup=False, highlight=False)
    with console.status("reading the records") as status:  # invisible without a terminal
        page = write_report(
            list(folders),
            out,
            target=parse_target(target) if target is not None else None,
            figures=figures,
            watch=lambda doing: status.update(Text(doing, overflow="ellipsis", no_wrap=True)),
        )
    summary = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["summary"]
    if as_json:
        known = {"answer": summary["answer"], "runs": len(summary["cells"]), "faults": summary["faults"]}
        print(json.dumps({"report": str(page)} | known))
        return
    print(summary["answer"]["headline"], file=sys.stderr)
    print(page)
