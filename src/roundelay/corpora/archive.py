"""Unpack untrusted archives: only plain files and folders, and nothing outside the target folder."""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from roundelay.errors import DataError


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar or zip into a folder that appears only when it is complete; do nothing if it exists."""
    archive, target = Path(archive), Path(target)
    if target.is_dir():
        return
    work = target.parent.parent / f".{target.name}.unpacking"  # not beside the target: imports look there
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if zipfile.is_zipfile(archive):
            _unzip(archive, work)
        else:
            _untar(archive, work)
        os.replace(work, target)
    except OSError as error:
        raise DataError(f"{archive}: cannot be unpacked into {target}: {error.strerror or error}") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError) as error:
        raise DataError(f"{archive}: damaged or no archive: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _untar(archive: Path, work: Path) -> None:
    with tarfile.open(archive) as packed:
        for member in packed:
            place = _place(archive, work, member.name)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                content = packed.extractfile(member)
                assert content is not None  # a plain file has content
                _write(archive, place, member.name, content)
            else:
                kind = "a link" if member.islnk() or member.issym() else "a device"
                raise DataError(f"{archive}: refused: {member.name!r} is {kind}")


def _unzip(archive: Path, work: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            place = _place(archive, work, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"{archive}: refused: {member.filename!r} is neither a file nor a folder")
            if member.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                with packed.open(member) as content:
                    _write(archive, place, member.filename, content)


def _place(archive: Path, work: Path, name: str) -> Path:
    """Return the path of a member; raise if it is outside the folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts[0] if path.parts else "") or "\0" in name:
        raise DataError(f"{archive}: refused: {name!r} would be unpacked outside of the folder")
    return work.joinpath(*path.parts)


def _write(archive: Path, place: Path, name: str, content: IO[bytes]) -> None:
    if place.exists():
        raise DataError(f"{archive}: refused: {name!r} is in it twice")
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
