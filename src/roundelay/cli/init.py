"""``roundelay init``: write an experiment, a study, a cluster or a training loop to start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click

from roundelay.cli.screen.plain_tables import keep_whole, plain_console, plain_table, wide_option
from roundelay.errors import SettingsError
from roundelay.files import write_text
from roundelay.included_files import COMMANDS, LOOP, Kind, find_file, included_names

EPILOG = """\b
Examples:
  roundelay init --list
  roundelay init experiment
  roundelay init experiment an4-dnn --out mine.toml && roundelay train mine.toml --data data/an4 --out runs/mine
  roundelay init study papers
  roundelay init cluster v100-ethernet
  roundelay init loop --out train.py
"""
DEFAULTS: dict[Kind, str] = {"experiment": "tiny", "study": "tiny", "cluster": "two-racks"}
KINDS = (*get_args(Kind), "loop")


@click.command(epilog=EPILOG)
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.argument("name", required=False)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default: NAME.toml here.")
@click.option("--list", "listing", is_flag=True, help="List the included files.")
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(kind: str | None, name: str | None, *, out: Path | None, listing: bool, wide: bool, as_json: bool) -> None:
    """Write a copy of an included experiment, study or cluster, or a training loop of your own, to be changed.

    A file can also extend an included one: a line extends = "an4-dnn", and below it only what differs.
    """
    if listing:
        _list(wide=wide, as_json=as_json)
        return
    if kind is None:
        raise SettingsError(f"init: say what to write: {', '.join(KINDS)}; --list shows what there is")
    source = LOOP if kind == "loop" else _source(kind, name)
    target = out or Path("loop.py" if kind == "loop" else f"{source.stem}.toml")
    if target.exists():
        raise SettingsError(f"{target} already exists; give another --out")
    write_text(target, _standing_alone(source))
    if as_json:
        click.echo(json.dumps({"kind": kind, "file": str(target)}))
        return
    click.echo(f"{target}: written; next: {_next(kind, target)}")


def _source(kind: str, name: str | None) -> Path:
    (known,) = (each for each in get_args(Kind) if each == kind)
    return find_file(known, name or DEFAULTS[known])


def _standing_alone(source: Path) -> str:
    """Return the text of an included file, with the files that it names by their included names."""
    text = source.read_text(encoding="utf-8")
    for found in sorted({*source.parent.parent.glob("*.toml"), *source.parent.parent.glob("clusters/*.toml")}):
        inside = found.relative_to(source.parent.parent)
        text = text.replace(f'"../{inside}"', f'"{found.stem}"')
    return text


def _next(kind: str, target: Path) -> str:
    if kind == "loop":
        return f"torchrun --nproc-per-node 2 {target}"
    (known,) = (each for each in get_args(Kind) if each == kind)
    out = {"experiment": " --out runs/first", "study": " --out studies/first", "cluster": ""}[known]
    return f"roundelay {COMMANDS[known]} {target}{out}"


def _list(*, wide: bool, as_json: bool) -> None:
    found = {kind: {name: _purpose(find_file(kind, name)) for name in included_names(kind)} for kind in get_args(Kind)}
    if as_json:
        click.echo(json.dumps(found))
        return
    console = plain_console(wide=wide)
    for kind, files in found.items():
        table = plain_table(kind, f"what it is (roundelay {COMMANDS[kind]} NAME)")
        for name, purpose in files.items():
            table.add_row(name, purpose)
        console.print(keep_whole(table))
        console.print()


def _purpose(path: Path) -> str:
    """Return the first sentences of a file: its comment until an empty line."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.strip("# "))
    return " ".join(lines)
