"""Stages that resume: each leaves a marker with the digest of its inputs and the list of its files.

A stage is done if its marker has the digest of the present inputs and all its files are as it left them, by their
digests.  So a stage with a damaged file is repeated.  The marker is removed before a stage begins and written after all
its files, so an interrupted stage is repeated, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.errors import DataError
from roundelay.files import digest, file_digest, make_inside, open_own, read_json, refuse_links, write_json

_log = logging.getLogger(__name__)

FOLDER = "stages"
_LOCK = ".lock"


@dataclass(frozen=True)
class Stage:
    """A step of preparation."""

    name: str
    inputs: Any
    """All inputs except the results of other stages, as JSON values."""
    run: Callable[[], Iterable[Path]]
    """Run the stage and return the files it made."""
    after: tuple[str, ...] = ()
    """The stages whose results this one uses."""


class Stages:
    """Run the stages of a folder; skip those that are done."""

    def __init__(self, folder: Path, stages: Sequence[Stage], jobs: int = 1) -> None:
        self.folder = folder
        self.stages = stages
        self._jobs = jobs
        self._missing: list[str] | None = None
        self.digests: dict[str, str] = {}
        for stage in stages:
            before = {name: self.digests[name] for name in stage.after}
            self.digests[stage.name] = digest({"stage": stage.name, "inputs": stage.inputs, "after": before})

    def missing(self) -> list[str]:
        """List the stages that are not done; all files of the others are read once, in ``jobs`` threads."""
        if self._missing is None:
            with ThreadPoolExecutor(self._jobs) as pool:
                self._missing = [stage.name for stage in self.stages if not self._done(stage, pool)]
        return self._missing

    def run(self) -> list[str]:
        """Run the stages that are not done, in order; return their names."""
        done, missing = [], self.missing()
        for stage in self.stages:
            if stage.name not in missing:
                continue
            marker = self._marker(stage.name)
            marker.unlink(missing_ok=True)
            begin = time.monotonic()
            made = {str(path.relative_to(self.folder)): path for path in stage.run()}
            seconds = time.monotonic() - begin
            marked = {"digest": self.digests[stage.name], "seconds": round(seconds, 3)}
            marked["files"] = {name: path.stat().st_size for name, path in made.items()}
            with ThreadPoolExecutor(self._jobs) as pool:
                marked["sha256"] = dict(zip(made, pool.map(file_digest, made.values()), strict=True))
            write_json(marker, marked)
            _log.info("%s: done in %.1f s", stage.name, seconds)
            done.append(stage.name)
        self._missing = []
        return done

    def sums(self) -> dict[str, str]:
        """Return the digests of all files of all stages, by their names in the folder."""
        markers = [read_json(self._marker(stage.name)) for stage in self.stages]
        return {name: sha256 for marker in markers for name, sha256 in marker.get("sha256", {}).items()}

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each stage's last run."""
        markers = {stage.name: self._marker(stage.name) for stage in self.stages}
        return {name: read_json(marker)["seconds"] for name, marker in markers.items() if marker.is_file()}

    def _marker(self, name: str) -> Path:
        return self.folder / FOLDER / f"{name}.json"

    def _done(self, stage: Stage, pool: ThreadPoolExecutor) -> bool:
        try:
            marker = read_json(self._marker(stage.name))
            sizes, sums = marker["files"], marker.get("sha256", {})  # older versions have written no digests
            if marker["digest"] != self.digests[stage.name]:
                return False
            if any((self.folder / name).stat().st_size != size for name, size in sizes.items()):
                return False
            found = pool.map(file_digest, [self.folder / name for name in sums])
            damaged = [name for name, digest in zip(sums, found, strict=True) if digest != sums[name]]
        except (OSError, DataError, KeyError, AttributeError):
            return False
        for name in damaged:
            _log.warning("%s: damaged; the stage %s is run again", self.folder / name, stage.name)
        return not damaged


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other preparations; the operating system releases the lock when the process ends."""
    handle = open_own(folder / _LOCK, os.O_RDWR)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{folder}: in use by another preparation; wait for it, or give another --out") from None
        yield
    finally:
        os.close(handle)


def create_folder(folder: Path) -> Path:
    """Make the folder if it does not exist; raise if it contains anything but prepared data."""
    if folder.is_dir():
        if any(folder.iterdir()) and not (folder / FOLDER).is_dir():
            raise DataError(f"{folder}: not empty, and not prepared data; give a new folder as --out")
    elif folder.exists():
        raise DataError(f"{folder}: a file; --out must be a folder")
    make_inside(folder, FOLDER)
    refuse_links(folder)
    return folder


def files_under(*folders: Path) -> list[Path]:
    """List all files in folders and below, hidden ones left out."""
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file() and path.name[0] != "."]
