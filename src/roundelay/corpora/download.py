"""Download a file: continue an interrupted download, check it at the end, then move it to its name.

A published checksum is in the corpus's module.  If there is none, the first download writes the checksum it found to
``fetched.json`` beside the file, and later downloads must match it.
"""

from __future__ import annotations

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
from roundelay.files import file_digest, inside, make_folder, open_own, write_text

LOCK = "fetched.json"
ATTEMPTS = 4
_PIECE = 1 << 18
_TIMEOUT_SECONDS = 60

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and the total, None if unknown."""


def download_file(download: Download, folder: Path, progress: Progress | None = None) -> Path:
    """Download a file into a folder and return its path."""
    url = download.url
    if not url.startswith(("https://", "http://")):
        raise DataError(f"{url}: only http and https are fetched")
    target = download_path(download, folder)
    make_folder(folder)
    if not target.is_file():
        part = target.with_name(f"{target.name}.part")
        _download(url, part, progress)
        _verify(download, part, target)
        os.replace(part, target)
    else:
        _verify(download, target, target)
    return target


def download_path(download: Download, folder: Path) -> Path:
    """Return the path of a download in a folder: the last part of the address."""
    return inside(folder, download.url.rpartition("/")[2].partition("?")[0] or "download", what="file of the address")


def _download(url: str, part: Path, progress: Progress | None) -> None:
    """Download into ``part``; try again a few times after a broken connection."""
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
    raise DataError(f"{url}: stopped after {have} bytes ({reason}); run the same command to continue")


def _attempt(url: str, part: Path, progress: Progress | None) -> None:
    have, tag = _state(part)
    request = urllib.request.Request(url, headers={"User-Agent": "roundelay"})  # noqa: S310 (http or https, see above)
    if have:
        request.add_header("Range", f"bytes={have}-")
        if tag:
            request.add_header("If-Range", tag)  # if the file has changed, the server sends all of it
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
            return  # the download was complete
        part.unlink()
        raise ConnectionError("the partial download does not match the file") from error
    with answer:
        begin = _begin(answer, have)
        _keep_state(part, answer.headers)
        _copy(answer, part, begin, progress)


def _begin(answer: Any, have: int) -> int:
    """Return the position in the file at which the response begins."""
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
        raise ConnectionError(f"{done} of {total} bytes received")


@contextmanager
def _part(part: Path, begin: int) -> Iterator[IO[bytes]]:
    """Open the partial file at ``begin``; flush it to the disk at the end."""
    with os.fdopen(open_own(part, os.O_RDWR), "r+b", buffering=0) as file:
        file.truncate(begin)
        file.seek(begin)
        yield file
        os.fsync(file.fileno())


def _state(part: Path) -> tuple[int, str]:
    """Return the size of the partial file and the version (ETag or date) it belongs to."""
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
    """Compare a file with its published checksum, or with that of the first download."""
    digest = file_digest(found)
    lock = _lock(target.parent)
    noted = lock.get(target.name, {})
    wanted = download.sha256 or (noted.get("sha256") if noted.get("url") == download.url else None)
    if wanted is not None and digest != wanted:
        if found != target:
            found.unlink()
        hint = "the download was removed; try again" if found != target else "remove the file and download it again"
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
        raise DataError(f"{folder / LOCK}: damaged; remove it to accept the next download") from error
