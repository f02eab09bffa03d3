"""Unpack untrusted archives: only plain files and folders, nothing outside the target folder, and no bombs."""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO

from roundelay.errors import DataError
from roundelay.files import inside_nested, make_folder
from roundelay.formats.compressed import UnpackedBytes, decompressed

_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
_MEMBERS, _BYTES_PER_MEMBER = 10_000, 64
"""An archive may have as many members, and one more for as many of its own bytes."""


def unpack(archive: Path, target: Path) -> None:
    """Unpack a tar or zip into a folder that appears only when it is complete; do nothing if it exists."""
    archive, target = Path(archive), Path(target)
    if target.is_dir():
        return
    if archive.exists() and not archive.is_file():
        raise DataError(f"{archive}: not a plain file")
    work = target.parent.parent / f".{target.name}.unpacking"  # not beside the target: imports look there
    shutil.rmtree(work, ignore_errors=True)
    try:
        make_folder(target.parent)
        work.mkdir(mode=0o700)  # unfinished work is for no other user; what is inside gets the user's umask
        (work / "content").mkdir()
        if zipfile.is_zipfile(archive):
            _unzip(archive, work / "content")
        else:
            _untar(archive, work / "content")
        os.replace(work / "content", target)
    except OSError as error:
        raise DataError(f"{archive}: cannot be unpacked into {target}: {error.strerror or error}") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError) as error:
        raise DataError(f"{archive}: damaged or no archive: {error}") from error
    except (ValueError, OverflowError) as error:  # numbers of a header that are none
        raise DataError(f"{archive}: damaged: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Unpacking:
    """Write the members of one archive; count them and their bytes."""

    def __init__(self, archive: Path, work: Path) -> None:
        self._archive, self._work = archive, work
        size = archive.stat().st_size
        self._members, self._most_members = 0, _MEMBERS + size // _BYTES_PER_MEMBER
        self._budget = UnpackedBytes(archive, size)

    def place(self, name: str) -> Path:
        """Return the path of the next member."""
        self._members += 1
        if self._members > self._most_members:
            raise DataError(f"{self._archive}: refused: more than {self._most_members} files in so small an archive")
        return inside_nested(self._work, name, where=f"{self._archive}: refused")

    def write(self, place: Path, name: str, content: IO[bytes]) -> None:
        if place.exists():
            raise DataError(f"{self._archive}: refused: {name[:80]!r} is in it twice")
        make_folder(place.parent)
        with place.open("xb") as file:
            while piece := content.read(1 << 20):
                self._budget.spend(len(piece))
                file.write(piece)


def _untar(archive: Path, work: Path) -> None:
    unpacking = _Unpacking(archive, work)
    with archive.open("rb") as raw, tarfile.open(fileobj=decompressed(raw, archive), mode="r:") as packed:
        for member in packed:
            place = unpacking.place(member.name)
            if member.isdir():
                make_folder(place)
            elif member.isfile() and not member.issparse():
                content = packed.extractfile(member)
                assert content is not None  # a plain file has content
                unpacking.write(place, member.name, content)
            else:
                kind = "a link" if member.islnk() or member.issym() else "a device or a sparse file"
                raise DataError(f"{archive}: refused: {member.name[:80]!r} is {kind}")


def _unzip(archive: Path, work: Path) -> None:
    unpacking = _Unpacking(archive, work)
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            if not member.filename:
                raise DataError(f"{archive}: refused: a file without a name")
            place = unpacking.place(member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"{archive}: refused: {member.filename[:80]!r} is neither a file nor a folder")
            if member.compress_type not in _KINDS:
                raise DataError(f"{archive}: refused: {member.filename[:80]!r} is compressed in an unusual way")
            if member.is_dir():
                make_folder(place)
            else:
                with packed.open(member) as content:
                    unpacking.write(place, member.filename, content)
