"""What a corpus file tells about itself, and how any of them is brought into the one layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.corpora.data_directory import find_splits
from roundelay.errors import DataError
from roundelay.formats.text_tables import write_text

MARKER = "corpus.json"
_STARTED = ".importing.json"


@dataclass(frozen=True)
class Download:
    """A file to fetch.  Where no checksum is published, the first fetch notes the one it saw (see ``fetch``)."""

    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class Corpus:
    """A corpus: what it is, how its original folder becomes our layout, and what can be fetched."""

    name: str
    summary: str
    licence: str
    import_splits: Callable[[Path, Path], None] | None
    """Read the original folder (first) and write splits into the other; None for one that is made, not brought."""
    parts: Mapping[str, Download] = field(default_factory=dict)
    default_parts: tuple[str, ...] = ()


def import_corpus(corpus: Corpus, source: Path, out: Path) -> None:
    """Import a corpus; do nothing where this very import is complete, and start over where it was interrupted."""
    source, out = Path(source).absolute(), Path(out).absolute()
    if corpus.import_splits is None:
        raise DataError(f"{corpus.name} is not imported but made: roundelay corpus synth --out {out}")
    if not source.is_dir():
        raise DataError(f"{source}: no such folder; the corpus {corpus.name} is to be found in it")
    if source == out:
        raise DataError(f"{out}: the corpus cannot be imported into its own folder; give another one by --out")
    note = {"corpus": corpus.name, "source": str(source)}
    for marker in (MARKER, _STARTED):
        if (out / marker).is_file() and _read(out / marker) != note:
            raise DataError(f"{out}: holds another corpus already ({_read(out / marker)}); give a new or empty folder")
    if (out / MARKER).is_file():
        return
    _begin(out, note, inside=source)
    corpus.import_splits(source, out)
    find_splits(out)  # something must have come of it
    write_text(out / MARKER, json.dumps(note, indent=2) + "\n")
    (out / _STARTED).unlink(missing_ok=True)


def _begin(out: Path, note: dict[str, str], inside: Path) -> None:
    """Claim a folder that is new, empty, ours, or that holds nothing but the source (as after a fetch)."""
    if out.is_dir() and not (out / _STARTED).is_file() and not inside.is_relative_to(out) and any(out.iterdir()):
        raise DataError(f"{out}: there is something else in this folder; give a new or empty one")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror}") from error
    write_text(out / _STARTED, json.dumps(note))


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
        return {key: str(found[key]) for key in ("corpus", "source")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged; remove it, or give another folder") from error
