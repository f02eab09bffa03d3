"""Download a file: on from where it broke off, checked at the end, there whole or not at all.

The checksum is either published (and then in the corpus's file), or unknown: then the first fetch notes what it saw in
``fetched.json`` beside the file, and later ones are held to it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from roundelay.corpora.importer import Download
from roundelay.errors import DataError
from roundelay.formats.text_tables import write_text

LOCK = "fetched.json"
ATTEMPTS = 4
_PIECE = 1 << 18
_TIMEOUT_SECONDS = 60

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and, where known, all of them."""


def download_file(download: Download, folder: Path, progress: Progress | None = None) -> Path:
    """Bring a file into a folder and return its path."""
    url = download.url
    if not url.startswith(("https://", "http://")):
        raise DataError(f"{url}: only http and https are fetched")
    name = url.rpartition("/")[2].partition("?")[0] or "download"
    target = Path(folder) / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror}") from error
    if not target.is_file():
        part = target.with_name(f"{name}.part")
        _download(url, part, progress)
        _verify(download, part, target)
        os.replace(part, target)
    else:
        _verify(download, target, target)
    return target


def _download(url: str, part: Path, progress: Progress | None) -> None:
    """Fetch into ``part``, going on after a broken connection a few times."""
    reason: Exception | None = None
    for _ in range(ATTEMPTS):
        before = part.stat().st_size if part.is_file() else 0
        try:
            return _attempt(url, part, progress)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                raise DataError(f"{url}: the server answers {error.code} {error.reason}") from error
            reason = error
        except (OSError, http.client.HTTPException) as error:
            reason = error
        if part.is_file() and part.stat().st_size < before:
            break
    have = part.stat().st_size if part.is_file() else 0
    raise DataError(f"{url}: broke off after {have} bytes ({reason}); the same command again goes on from there")


def _attempt(url: str, part: Path, progress: Progress | None) -> None:
    have, tag = _state(part)
    request = urllib.request.Request(url, headers={"User-Agent": "roundelay"})  # noqa: S310 (http or https, see fetch)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if tag:
            request.add_header("If-Range", tag)  # a file that has changed comes whole
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
            return  # all of it was there
        part.unlink()
        raise ConnectionError("what was there does not fit the file") from error
    with answer:
        begin = _begin(answer, have)
        _keep_state(part, answer.headers)
        _copy(answer, part, begin, progress)


def _begin(answer: Any, have: int) -> int:
    """Say where in the file the answer starts."""
    if answer.status != 206:
        return 0
    start = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if start != str(have):
        raise ConnectionError(f"the server sent the file from byte {start or '?'} on, not from {have}")
    return have


def _copy(answer: Any, part: Path, begin: int, progress: Progress | None) -> None:
    length = answer.headers.get("Content-Length")
    total = begin + int(length) if length and length.isdigit() else None
    done = begin
    with _part(part, begin) as file:
        while piece := answer.read(_PIECE):
            try:
                file.write(piece)
            except OSError as error:
                raise DataError(f"{part}: cannot be written: {error.strerror}") from error
            done += len(piece)
            if progress:
                progress(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"{done} of {total} bytes came")


@contextmanager
def _part(part: Path, begin: int) -> Iterator[IO[bytes]]:
    """Open what is there to go on from ``begin``; see to it that it is on the disk when done."""
    with part.open("r+b" if begin else "wb", buffering=0) as file:
        file.truncate(begin)
        file.seek(begin)
        yield file
        os.fsync(file.fileno())


def _state(part: Path) -> tuple[int, str]:
    """Read how much is there and the version that it is of."""
    note = part.with_name(f"{part.name}.json")
    if not part.is_file():
        return 0, ""
    try:
        return part.stat().st_size, str(json.loads(note.read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return part.stat().st_size, ""


def _keep_state(part: Path, headers: Any) -> None:
    tag = headers.get("ETag", "")
    strong = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")
    write_text(part.with_name(f"{part.name}.json"), json.dumps({"version": strong}))


def _verify(download: Download, found: Path, target: Path) -> None:
    """Hold a file to its published checksum, or to the one noted when it was first fetched."""
    digest = _digest(found)
    lock = _lock(target.parent)
    noted = lock.get(target.name, {})
    wanted = download.sha256 or (noted.get("sha256") if noted.get("url") == download.url else None)
    if wanted is not None and digest != wanted:
        if found != target:
            found.unlink()
        hint = "what came is thrown away; try again" if found != target else "remove the file and fetch it anew"
        raise DataError(f"{target}: its sha256 is {digest}, not {wanted}; {hint}")
    found.with_name(f"{target.name}.part.json").unlink(missing_ok=True)
    lock[target.name] = {"url": download.url, "sha256": digest, "bytes": str(found.stat().st_size)}
    write_text(target.parent / LOCK, json.dumps(lock, indent=2, sort_keys=True) + "\n")


def _lock(folder: Path) -> dict[str, dict[str, str]]:
    if not (folder / LOCK).is_file():
        return {}
    try:
        found = json.loads((folder / LOCK).read_text())
        return {str(name): {str(k): str(v) for k, v in entry.items()} for name, entry in found.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{folder / LOCK}: damaged; remove it to trust what is fetched next") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
