"""The one way to write files: to a temporary file first, which then replaces the old file in one move.

A file is complete or unchanged, also if the process is killed or the disk is full.  `write_bytes` raises a plain
`OSError`, so that a checkpoint can be tried again; the others raise a `DataError` that names the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roundelay.errors import DataError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path to write to; it replaces ``path`` unless an error is raised."""
    with data_errors(path), _replacing(Path(path)) as temporary:
        yield temporary


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, complete or not at all; an `OSError` is raised as it is."""
    with _replacing(path) as temporary:
        temporary.write_bytes(data)


def remove_unfinished(folder: Path, pattern: str = "") -> None:
    """Remove what killed processes have not finished writing in a folder, or in those below it by ``pattern``."""
    for left in folder.glob(f"{pattern}.*.[0-9]*"):
        left.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, complete or not at all."""
    with data_errors(path):
        write_bytes(Path(path), text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], value: Any, *, sort_keys: bool = True) -> None:
    """Write a JSON file, complete or not at all."""
    write_text(path, json.dumps(value, indent=1, sort_keys=sort_keys, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    # the process's number in the name lets `remove_unfinished` find what a killed process has left
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # a full disk names no file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    flush(path.parent)


@contextlib.contextmanager
def data_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise a `DataError` that names ``path`` for an error of the operating system with this file."""
    try:
        yield
    except OSError as error:
        if error.strerror and error.filename in (None, str(path)):
            raise DataError(
                f"{path}: cannot be written: {error.strerror}; fix this and run the same command again"
            ) from error
        raise


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it, unless it exists."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error


def flush(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from None


def digest(value: Any) -> str:
    """Return a SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
