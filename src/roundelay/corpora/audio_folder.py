"""A plain folder of audio with ``transcripts.tsv``: path, text, and optionally speaker and split, separated by tabs.

A first line that begins with ``path`` names the columns; without it they are in that order.  Paths are relative to the
folder.  Without a speaker column, the speaker is the name of the file's subfolder, or of the file if there is none.
Without a split column, speakers are divided into splits.  A line without audio and audio without a line are errors.
"""

from __future__ import annotations

from pathlib import Path

from roundelay.corpora.data_directory import Utterance
from roundelay.corpora.importer import Corpus
from roundelay.corpora.kaldi_dir import copy_language
from roundelay.corpora.splits import divide_by_speaker, split_name, utterance_id, write_splits
from roundelay.errors import DataError
from roundelay.formats.text_tables import read_lines

TABLE = "transcripts.tsv"
_COLUMNS = ("path", "text", "speaker", "split")
_AUDIO = {".wav", ".flac", ".ogg", ".mp3", ".sph"}


def import_splits(source: Path, out: Path) -> None:
    """Import the files in the table."""
    divided: dict[str, list[Utterance]] = {}
    seen: dict[Path, int] = {}
    for number, row in _rows(source / TABLE):
        where = f"{source / TABLE}:{number}"
        audio = source / row["path"]
        if not audio.is_file():
            raise DataError(f"{where}: the audio is not there: {row['path']}")
        if audio.resolve() in seen:
            raise DataError(f"{where}: {row['path']} is already in line {seen[audio.resolve()]}")
        seen[audio.resolve()] = number
        divided.setdefault(split_name(row.get("split", "")), []).append(_utterance(row, audio, where))
    _check_all_listed(source, set(seen))
    if not divided:
        raise DataError(f"{source / TABLE}: no lines in it")
    if "" in divided and len(divided) > 1:
        raise DataError(f"{source / TABLE}: {divided[''][0].audio.name} has no split and others have one")
    write_splits(out, divide_by_speaker(divided[""]) if "" in divided else divided)
    copy_language(source, out)


def _rows(table: Path) -> list[tuple[int, dict[str, str]]]:
    columns: tuple[str, ...] = _COLUMNS
    rows: list[tuple[int, dict[str, str]]] = []
    for number, line in read_lines(table):
        fields = [field.strip() for field in line.split("\t")]
        if not rows and fields[0] == "path":
            if unknown := sorted(set(fields) - set(_COLUMNS)):
                raise DataError(f"{table}:{number}: unknown column {unknown[0]!r}; there are {', '.join(_COLUMNS)}")
            columns = tuple(fields)
            continue
        if not 2 <= len(fields) <= len(columns):
            raise DataError(f"{table}:{number}: {' TAB '.join(columns)} is wanted, not {line[:60]!r}")
        rows.append((number, {key: value for key, value in zip(columns, fields, strict=False) if value}))
    return rows


def _utterance(row: dict[str, str], audio: Path, where: str) -> Utterance:
    words = tuple(row.get("text", "").split())
    if not words:
        raise DataError(f"{where}: {row['path']} has no words")
    relative = Path(row["path"]).with_suffix("")
    nested = relative.parent.name if str(relative.parent) != "." else relative.name
    speaker = "_".join(row.get("speaker", nested).split())
    return Utterance(utterance_id(speaker, str(relative)), audio, speaker, words)


def _check_all_listed(source: Path, listed: set[Path]) -> None:
    for file in sorted(source.rglob("*")):
        if file.suffix.lower() in _AUDIO and file.resolve() not in listed:
            raise DataError(f"{source / TABLE}: no transcript of {file.relative_to(source)}, whose audio is there")


CORPUS = Corpus(
    name="folder",
    summary=f"a folder of audio with a table, {TABLE}",
    licence="its own",
    import_splits=import_splits,
)
