"""The description of a corpus, and its import as data directories."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.corpora.data_directory import find_splits
from roundelay.errors import DataError
from roundelay.files import make_folder, write_text

MARKER = "corpus.json"
_STARTED = ".importing.json"


@dataclass(frozen=True)
class Download:
    """A file to download; without a published checksum, that of the first download is used (see ``download``)."""

    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class Corpus:
    """A corpus: its description, the function that imports it, and its downloads."""

    name: str
    summary: str
    licence: str
    import_splits: Callable[[Path, Path], None] | None
    """Read the original folder (first argument) and write splits into the second; None for the synthetic corpus."""
    parts: Mapping[str, Download] = field(default_factory=dict)
    default_parts: tuple[str, ...] = ()


def import_corpus(corpus: Corpus, source: Path, out: Path) -> None:
    """Import a corpus; do nothing if the same import is complete, and start over if it was interrupted."""
    source, out = Path(source).absolute(), Path(out).absolute()
    if corpus.import_splits is None:
        raise DataError(f"{corpus.name} cannot be imported; make it with: roundelay corpus synth --out {out}")
    if not source.is_dir():
        raise DataError(f"{source}: no such folder; give the original folder of {corpus.name}")
    if source == out:
        raise DataError(f"{out}: the corpus cannot be imported into its own folder; give another --out")
    note = {"corpus": corpus.name, "source": str(source)}
    for marker in (MARKER, _STARTED):
        if (out / marker).is_file() and _read(out / marker) != note:
            raise DataError(f"{out}: contains another corpus ({_read(out / marker)}); give a new or empty folder")
    if (out / MARKER).is_file():
        return
    _begin(out, note, inside=source)
    corpus.import_splits(source, out)
    find_splits(out)  # raises if nothing was imported
    write_text(out / MARKER, json.dumps(note, indent=2) + "\n")
    (out / _STARTED).unlink(missing_ok=True)


def _begin(out: Path, note: dict[str, str], inside: Path) -> None:
    """Mark the folder as started; it must be new, empty, started before, or contain the source (after a download)."""
    if out.is_dir() and not (out / _STARTED).is_file() and not inside.is_relative_to(out) and any(out.iterdir()):
        raise DataError(f"{out}: contains other files; give a new or empty folder")
    make_folder(out)
    write_text(out / _STARTED, json.dumps(note))


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
        return {key: str(found[key]) for key in ("corpus", "source")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged; remove it, or give another folder") from error
