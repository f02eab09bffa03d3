"""The one way to write files, and the one way from a name in somebody's file to a path.

A file is written to a temporary file first, which then replaces the old file in one move.  So it is complete or
unchanged, also if the process is killed or the disk is full.  `write_bytes` raises a plain `OSError`, so that a
checkpoint can be tried again; the others raise a `DataError` that names the file.

A name that comes from a file (an id, a split, a manifest, a member of an archive) becomes a path by `inside`.  Nothing
is written outside of the folder that the user has named, also not through a link.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from roundelay.errors import DataError

_LONGEST_NAME_BYTES = 200  # file systems allow 255; a suffix and the name of a temporary file are added
_DEEPEST = 64


def inside(folder: str | os.PathLike[str], *names: str, what: str = "name") -> Path:
    """Return the path of ``names`` below ``folder``: each is the name of one file or folder.

    Raise if a name is none (it has a slash, is ``..``, is hidden), or if a link on the way leads out of ``folder``.
    ``what`` says in the message what kind of name it is.
    """
    for name in names:
        if reason := _no_file_name(name, hidden=False):
            raise DataError(f"{folder}: the {what} {name[:80]!r} cannot be the name of a file: {reason}; rename it")
    return _without_links(Path(folder), names)


def inside_nested(folder: str | os.PathLike[str], name: str, *, where: str) -> Path:
    """Return the path of a name with folders in it, ``audio/a.wav``, below ``folder``; hidden files are allowed.

    Raise as `inside` does; ``where`` says in the message where the name is from.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    reason = next((reason for part in parts if (reason := _no_file_name(part, hidden=True))), None)
    if name.startswith(("/", "\\")) or ".." in parts or (parts and parts[0][1:2] == ":"):
        reason = "it is outside of the folder"
    elif len(parts) > _DEEPEST:
        reason = f"it is {len(parts)} folders deep, more than {_DEEPEST}"
    if reason:
        raise DataError(f"{where}: {name[:80]!r} cannot be the name of a file here: {reason}")
    return _without_links(Path(folder), parts)


def make_inside(folder: str | os.PathLike[str], *names: str, what: str = "name") -> Path:
    """Make the folder ``names`` below ``folder``, unless it exists, and return its path; raise as `inside` does."""
    path = inside(folder, *names, what=what)
    make_folder(path)
    return path


def _no_file_name(name: str, *, hidden: bool) -> str | None:
    """Return the reason why a name cannot be that of a file, or None."""
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        return "it is not text"
    if name in ("", ".", ".."):
        return "it names no file"
    if name.startswith(".") and not hidden:
        return "it begins with a dot, as hidden files do"
    if "/" in name or "\\" in name:
        return "it has a slash"
    if any(unicodedata.category(sign) == "Cc" for sign in name):
        return "it has a control character"
    return f"it has {size} bytes, more than {_LONGEST_NAME_BYTES}" if size > _LONGEST_NAME_BYTES else None


def _without_links(folder: Path, names: tuple[str, ...] | list[str]) -> Path:
    """Return ``folder`` / ``names``; raise if a link below ``folder`` leads out of it.  ``folder`` may be a link."""
    path = folder
    for name in names:
        path = path / name
        if path.is_symlink():
            top, end = os.path.realpath(folder), os.path.realpath(path)
            if os.path.commonpath([top, end]) != top:
                raise DataError(f"{path}: a link that leads out of {folder}, to {end}; remove it")
    return path


def refuse_links(folder: Path) -> None:
    """Raise if a link anywhere below ``folder`` leads out of it: for a folder in which files are removed, too."""
    for above, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(above, name)):
                _without_links(folder, Path(above, name).relative_to(folder).parts)


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file to write to it, and make it if it is missing, but never follow a link; return the descriptor."""
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)  # less the user's umask
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DataError(f"{path}: a link, which is not written through; remove it") from error
        raise


def append_text(path: str | os.PathLike[str], text: str) -> None:
    """Add text at the end of a file; a link is not followed."""
    with data_errors(path), os.fdopen(open_own(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def open_plain(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file of others to read it: a plain file, since a device or a pipe may have no end.

    An error of the operating system is a `DataError`.
    """
    try:
        # without O_NONBLOCK, opening a pipe waits for somebody who writes to it
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataError(f"{path}: not a plain file")
    with os.fdopen(descriptor, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


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
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON may have half of a surrogate pair
        raise DataError(f"{path}: {error.object[error.start]!r} is not text and cannot be written") from None
    with data_errors(path):
        write_bytes(Path(path), data)


def write_json(path: str | os.PathLike[str], value: Any, *, sort_keys: bool = True) -> None:
    """Write a JSON file, complete or not at all."""
    write_text(path, json.dumps(value, indent=1, sort_keys=sort_keys, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    # the process's number in the name lets `remove_unfinished` find what a killed process has left
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        os.close(open_own(temporary, os.O_WRONLY | os.O_EXCL))  # made here, so that no link of this name is followed
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
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None


def finite_json(value: Any) -> Any:
    """Return a value for JSON, which has no infinity and no NaN: None stands for them."""
    if isinstance(value, dict):
        return {key: finite_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(value: Any) -> str:
    """Return a SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
