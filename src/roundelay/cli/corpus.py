"""``roundelay corpus``: make, download or import a corpus as Kaldi-style data directories."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from roundelay import corpora
from roundelay.cli.screen.plain_tables import keep_whole, plain_console, plain_table, wide_option
from roundelay.cli.screen.progress_bars import ProgressDisplay
from roundelay.corpora.importer import MARKER, Corpus, Download, import_corpus
from roundelay.errors import DataError, SettingsError, suggest
from roundelay.files import inside

_SHOWN = 20
Tick = Callable[[int, int | None], None]

_folder = click.Path(path_type=Path, file_okay=False)
_out = click.option(
    "--out", required=True, type=_folder, help="Folder for the corpus: new, empty, or an earlier run's."
)
_json = click.option("--json", "as_json", is_flag=True, help="Report as one JSON object on standard output.")
_jobs = click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default="all cores", help="Processes at a time."
)


@click.group("corpus")
def command() -> None:
    """Make, download or import a corpus; every corpus ends as Kaldi-style data directories.

    \b
    roundelay corpus synth --hours 1 --out corpora/synthetic
    roundelay corpus fetch librispeech --part train-clean-5 --part dev-clean-2 --out corpora/mini
    roundelay corpus import kaldi /data/swbd/data --out corpora/swbd
    roundelay corpus check corpora/synthetic
    """  # noqa: D301 (\b tells click not to wrap this paragraph)


@command.command("list")
@wide_option
@_json
def list_corpora(*, wide: bool, as_json: bool) -> None:
    """List the corpora.

    \b
    roundelay corpus list
    """  # noqa: D301
    found = [corpora.load(name) for name in corpora.names()]
    if as_json:
        _print_json({"corpora": [_described(corpus) for corpus in found]})
        return
    console = plain_console(wide=wide)
    table = plain_table("corpus", "commands", "what it is [licence]", names=2)
    for corpus in found:
        ways = "synth" if corpus.import_splits is None else "fetch, import" if corpus.parts else "import"
        table.add_row(corpus.name, ways, f"{corpus.summary} [{corpus.licence}]")
    console.print(keep_whole(table))


def _described(corpus: Corpus) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "summary": corpus.summary,
        "licence": corpus.licence,
        "import": corpus.import_splits is not None,
        "parts": {part: {"url": d.url, "sha256": d.sha256} for part, d in corpus.parts.items()},
    }


@command.command()
@click.option("--hours", type=float, default=1.0, show_default=True, help="Hours of audio, clean and noisy together.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same bytes.")
@_out
@_jobs
@_json
def synth(*, hours: float, seed: int, out: Path, jobs: int, as_json: bool) -> None:
    """Make the synthetic corpus, spoken by espeak-ng; continue an interrupted run.

    \b
    roundelay corpus synth --hours 0.2 --out corpora/small
    roundelay corpus synth --hours 20 --seed 7 --jobs 8 --out corpora/large
    """  # noqa: D301
    from roundelay.corpora.synthetic import generator

    with _bar("speaking") as tick:
        generator.make_corpus(out, hours=hours, seed=seed, jobs=jobs, progress=tick)
    made = json.loads((out / generator.MARKER).read_text())
    if as_json:
        _print_json({"folder": str(out), **made})
        return
    for split, totals in made["splits"].items():
        click.echo(f"{split:6} {totals['utterances']:7} utterances  {totals['seconds'] / 3600:8.3f} h")


@command.command("import")
@click.argument("name")
@click.argument("folder", type=_folder)
@_out
@_json
def import_command(*, name: str, folder: Path, out: Path, as_json: bool) -> None:
    """Import the corpus NAME from its original FOLDER; the audio files are not copied.

    \b
    roundelay corpus import an4 /data/an4 --out corpora/an4
    roundelay corpus import folder /data/my-recordings --out corpora/mine
    """  # noqa: D301
    corpus = corpora.load(name)
    with _bar("importing") as _:
        import_corpus(corpus, folder, out)
    _report_splits(out, as_json=as_json)


@command.command()
@click.argument("name")
@click.option("--part", "parts", multiple=True, help="Part to download; may be repeated; see list --json.")
@click.option("--mirror", help="Download the same file names from this address.")
@_out
@_json
def fetch(*, name: str, parts: tuple[str, ...], mirror: str | None, out: Path, as_json: bool) -> None:
    """Download the corpus NAME, check it, unpack it and import it; continue an interrupted run.

    \b
    roundelay corpus fetch yesno --out corpora/yesno
    roundelay corpus fetch librispeech --part dev-clean --mirror https://us.openslr.org/resources/12 --out corpora/ls
    """  # noqa: D301
    from roundelay.corpora.archive import unpack
    from roundelay.corpora.download import download_file

    corpus = corpora.load(name)
    for part in _wanted(corpus, parts):
        download = corpus.parts[part]
        if mirror:
            download = Download(f"{mirror.rstrip('/')}/{download.url.rpartition('/')[2]}", download.sha256)
        with _bar(f"fetching {part}") as tick:
            archive = download_file(download, inside(out, "archives"), tick)
        folder = part_folder(out, part)
        if not folder.is_dir():
            (out / MARKER).unlink(missing_ok=True)  # a new part: the import must be repeated
            with _bar(f"unpacking {part}") as _:
                unpack(archive, folder)
    import_corpus(corpus, out / "original", out)
    _report_splits(out, as_json=as_json)


def part_folder(out: Path, part: str) -> Path:
    """Return the folder into which a part is unpacked."""
    return inside(out, "original", part, what="part")


def _wanted(corpus: Corpus, parts: tuple[str, ...]) -> tuple[str, ...]:
    if not corpus.parts:
        raise SettingsError(f"{corpus.name} cannot be downloaded ({corpus.licence}); use roundelay corpus import")
    for part in parts:
        if part not in corpus.parts:
            raise SettingsError(f"{corpus.name} has no part {suggest(part, corpus.parts)}")
    return parts or corpus.default_parts


@command.command()
@click.argument("folder", type=_folder)
@click.option("--headers-only", is_flag=True, help="Read only headers, not samples: faster, finds less.")
@_jobs
@_json
def check(*, folder: Path, headers_only: bool, jobs: int, as_json: bool) -> None:
    """Check a corpus or prepared data: print what is in FOLDER and what is wrong with it.

    \b
    roundelay corpus check corpora/an4
    """  # noqa: D301
    if (folder / "prepared.json").is_file():
        _check_prepared(folder, as_json=as_json)
        return
    from roundelay.corpora.inspection import inspect_corpus

    with _bar("checking") as tick:
        report = inspect_corpus(folder, headers_only=headers_only, jobs=jobs, progress=tick)
    if as_json:
        _print_json({"folder": str(folder), **report.as_json()})
    else:
        for name, split in report.splits.items():
            rates = "/".join(report.splits[name].rates) or "-"
            click.echo(
                f"{name:14} {split.utterances:7} utterances {split.speakers:5} speakers {split.words:8} words"
                f" ({split.vocabulary} different) {split.hours:9.3f} h  {rates} Hz"
            )
    _complain("warning", report.warnings)
    _complain("error", report.errors)
    if report.errors:
        raise DataError(f"{folder}: {len(report.errors)} errors, the first: {report.errors[0]}")


def _check_prepared(folder: Path, *, as_json: bool) -> None:
    from roundelay.speech.preparation import data_summary

    found = data_summary.check_prepared(folder)
    problems = found["problems"]
    if as_json:
        _print_json(found)
    else:
        click.echo("\n".join(data_summary.summary_lines(found)))
    _complain("warning", problems)
    # silent, clipped or unaligned utterances were reported by the preparation: they are no damage
    noted = sum(len(part[kind]) for part in found["splits"].values() for kind in ("failed", "silent", "clipped"))
    if len(problems) > noted:
        raise DataError(f"{folder}: damaged, {len(problems) - noted} errors, the first: {problems[0]}")


def _complain(kind: str, lines: list[str]) -> None:
    for line in lines[:_SHOWN]:
        click.echo(f"{kind}: {line}", err=True)
    if len(lines) > _SHOWN:
        click.echo(f"{kind}: and {len(lines) - _SHOWN} more (use --json to see all)", err=True)


def _report_splits(out: Path, *, as_json: bool) -> None:
    from roundelay.corpora.data_directory import find_splits, read_split

    found = {name: read_split(path) for name, path in find_splits(out).items()}
    counts = {n: {"utterances": len(us), "speakers": len({u.speaker for u in us})} for n, us in found.items()}
    if as_json:
        _print_json({"folder": str(out), "splits": counts})
        return
    for name, count in counts.items():
        click.echo(f"{name:14} {count['utterances']:7} utterances {count['speakers']:5} speakers")


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value))


@contextmanager
def _bar(title: str) -> Iterator[Tick]:
    """Show a bar on standard error if that is a terminal; yield a function that takes done and total."""
    share = TextColumn("{task.percentage:>3.0f}%")
    with ProgressDisplay(TextColumn("{task.description}"), BarColumn(), share, TimeRemainingColumn()) as display:
        task = display.progress.add_task(title, total=None)
        yield lambda done, total: display.progress.update(task, completed=done, total=total)
