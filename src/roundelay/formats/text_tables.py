"""Kaldi's text tables, one key and value per line: checked line by line when read, written atomically."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from roundelay.errors import DataError
from roundelay.files import open_plain, write_text
from roundelay.formats.compressed import decompressed


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank, of a gzip file too; name a line not in UTF-8."""
    try:
        with open_plain(path) as file:
            raw = decompressed(file, path).read()
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(raw.split(b"\n"), start=1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8 (byte {error.start}); convert the file to UTF-8") from error
        if text:
            yield number, text


def find_upwards(path: Path, folder: Path) -> Path | None:
    """Look for a file from a table's folder, then from the three folders above it."""
    folder = folder.absolute()
    return next((base / path for base in (folder, *folder.parents[:3]) if os.path.isfile(base / path)), None)


def read_table(path: Path) -> dict[str, str]:
    """Read ``key value`` lines; the value is the rest of the line and may be empty; raise if a key occurs twice."""
    return {key: value for key, (value, _) in read_numbered(path).items()}


def read_numbered(path: Path) -> dict[str, tuple[str, int]]:
    """Read ``key value`` lines as ``read_table`` does, each value with the number of its line."""
    table: dict[str, tuple[str, int]] = {}
    for number, line in read_lines(path):
        key, _, value = line.replace("\t", " ").partition(" ")
        if key in table:
            raise DataError(f"{path}:{number}: {key!r} is already in line {table[key][1]}; an id may come only once")
        table[key] = value.strip(), number
    return table


def write_table(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write ``key value`` lines sorted by key, as the C locale sorts them."""
    write_text(path, "".join(f"{key} {value}\n" for key, value in sorted(rows)))
