"""Checkpoints on disk: one part per rank, a safetensors file and a JSON file with the digests of both.

::

    checkpoints/0000001200/rank-0.safetensors    tensors of rank 0 after minibatch 1200
    checkpoints/0000001200/rank-0.json           numbers, and the digests of both files; written last

A part exists if its JSON file does, and a checkpoint is complete if all its parts exist: there is no list of them, and
ranks whose folders are on different hosts need not see each other's files.  Nothing is ever changed in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save

from roundelay.errors import CheckpointError
from roundelay.files import remove_unfinished, write_bytes
from roundelay.training.rank_state import RankState
from roundelay.training.training_settings import CheckpointSettings

FOLDER = "checkpoints"
FORMAT = 1
RETRY_SECONDS = 1.0
QUIET_SECONDS = 300.0  # between checkpoints if no interval is set
logger = logging.getLogger(__name__)


class PartList(msgspec.Struct):
    """The parts of one checkpoint that a process can read."""

    size: int
    attempt: int
    parts: list[int]


class ReadableParts(msgspec.Struct):
    """What a process can read of all checkpoints, by position, and what is damaged."""

    found: dict[str, PartList] = {}
    damaged: list[str] = []


class CheckpointId(msgspec.Struct):
    """One complete checkpoint."""

    position: int
    attempt: int
    size: int


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints in a run's folder."""

    run: Path

    @property
    def folder(self) -> Path:
        """The folder that they are in; it is made by the first one."""
        return self.run / FOLDER

    def positions(self) -> list[int]:
        """Return the positions at which there is any part of a checkpoint, newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((int(each.name) for each in self.folder.iterdir() if each.name.isdecimal()), reverse=True)

    def place(self, position: int) -> Path:
        """Return the folder of one checkpoint."""
        return self.folder / f"{position:010d}"

    def ranks(self, position: int) -> list[int]:
        """Return the ranks whose parts exist."""
        names = (path.stem.removeprefix("rank-") for path in self.place(position).glob("rank-*.json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def write(self, state: RankState) -> None:
        """Write a part: its tensors, then the JSON file with their digest."""
        for folder in (self.folder, self.place(state.position)):  # the run's own folder exists, or is lost
            folder.mkdir(exist_ok=True)
        stem = self._stem(state.position, state.rank)
        data = save(state.tensors)
        write_bytes(stem.with_suffix(".safetensors"), data)
        body = {
            "format": FORMAT,
            "position": state.position,
            "rank": state.rank,
            "size": state.size,
            "attempt": state.attempt,
            "state": state.state,
            "tensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        }
        write_bytes(stem.with_suffix(".json"), _seal(body))

    def read(self, position: int, rank: int) -> RankState:
        """Read a part; a `CheckpointError` says what is wrong with one that is damaged."""
        stem = self._stem(position, rank)
        path, tensors = stem.with_suffix(".json"), stem.with_suffix(".safetensors")
        try:
            body = _unseal(path)
            data = tensors.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{error.filename}: {error.strerror}") from error
        if (body["position"], body["rank"]) != (position, rank):
            raise CheckpointError(f"{path}: is the part of rank {body['rank']} at {body['position']}")
        told = body["tensors"]
        if len(data) != told["bytes"] or hashlib.sha256(data).hexdigest() != told["sha256"]:
            raise CheckpointError(f"{tensors}: damaged: not the bytes that were written")
        try:
            found = load(data)
        except SafetensorError as error:  # it was written so, and its digest is right
            raise CheckpointError(f"{tensors}: {error}") from error
        return RankState(position, rank, body["size"], body["attempt"], found, body["state"])

    def remove(self, positions: Iterable[int], rank: int) -> None:
        """Remove a rank's part of these checkpoints; the JSON file first."""
        for position in positions:
            for suffix in (".json", ".safetensors"):
                self._stem(position, rank).with_suffix(suffix).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other ranks still have parts in it
                self.place(position).rmdir()

    def clean(self, position: int | None) -> None:
        """Remove all checkpoints after ``position``, and files that a killed process has not finished."""
        for other in self.positions():
            if position is None or other > position:
                shutil.rmtree(self.place(other), ignore_errors=True)
        remove_unfinished(self.run)
        remove_unfinished(self.folder, "*/")

    def readable_parts(self, initial_rank: int, initial_size: int) -> ReadableParts:
        """Return which parts this process can read, by position, and what is damaged.

        Of a checkpoint of ``size`` ranks, rank k of ``initial_size`` reads the parts k, k + initial_size, ….
        """
        readable = ReadableParts()
        for position in self.positions():
            try:
                first = self.read(position, initial_rank) if initial_rank in self.ranks(position) else None
                if first is None:
                    continue
                parts = list(range(initial_rank, first.size, initial_size))
                for part in parts[1:]:
                    self.read(position, part)
            except CheckpointError as error:
                readable.damaged.append(str(error))
            else:
                readable.found[str(position)] = PartList(first.size, first.attempt, parts)
        return readable

    def _stem(self, position: int, rank: int) -> Path:
        return self.place(position) / f"rank-{rank}"


def newest_complete(readable: Iterable[ReadableParts]) -> CheckpointId | None:
    """Return the newest checkpoint of which every part can be read by some process."""
    parts: dict[tuple[int, int, int], set[int]] = {}
    for each in readable:
        for position, found in each.found.items():
            parts.setdefault((int(position), found.attempt, found.size), set()).update(found.parts)
    complete = [key for key, there in parts.items() if there >= set(range(key[2]))]
    return CheckpointId(*max(complete)) if complete else None


@dataclass
class Saver:
    """Writes checkpoints in a thread, while training continues; shared by all learners of a process."""

    run: Path
    settings: CheckpointSettings = field(default_factory=CheckpointSettings)
    _last_submit: float = field(default_factory=time.monotonic)
    _pool: ThreadPoolExecutor | None = None
    _writing: list[Future[None]] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)

    @property
    def checkpoints(self) -> Checkpoints:
        """Those of the run."""
        return Checkpoints(self.run)

    def due(self) -> bool:
        """Return whether it is time for a checkpoint, if that does not depend on frames."""
        minutes = self.settings.every_minutes
        return time.monotonic() - self._last_submit >= (QUIET_SECONDS if minutes is None else 60.0 * minutes)

    def submit(self, state: RankState) -> None:
        """Start to write a part; those of the checkpoint before exist on all ranks by now."""
        self._last_submit = time.monotonic()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing.append(self._pool.submit(self._write, state))

    def check(self) -> None:
        """Raise the error of a write that has failed, without waiting."""
        while self._writing and self._writing[0].done():
            self._writing.pop(0).result()

    def wait(self) -> None:
        """Wait until all is written; raise the error of a write that has failed."""
        while self._writing:
            self._writing.pop(0).result()

    def close(self) -> None:
        """Wait for the write under way, without trying again, and end the thread."""
        self._closing.set()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _write(self, state: RankState) -> None:
        before = [position for position in self.checkpoints.positions() if position < state.position]
        self._retry(lambda: self.checkpoints.write(state))
        # Those before are complete; this one may not be on other ranks yet, so one before it stays in any case.
        old = before[max(1, self.settings.keep - 1) :]
        with contextlib.suppress(OSError):  # then they stay until the next checkpoint
            self.checkpoints.remove(old, state.rank)
            for position in old if state.rank == 0 else []:  # parts of ranks that were lost
                for rank in self.checkpoints.ranks(position):
                    self.checkpoints.remove([position], rank)
                shutil.rmtree(self.checkpoints.place(position), ignore_errors=True)

    def _retry(self, action: Callable[[], None]) -> None:
        """Try, and try again for ``retry_minutes``."""
        deadline, said = time.monotonic() + 60.0 * self.settings.retry_minutes, False
        while True:
            try:
                return action()
            except OSError as error:
                where = error.filename or self.checkpoints.folder
                if time.monotonic() >= deadline or self._closing.wait(RETRY_SECONDS):
                    raise CheckpointError(
                        f"{where}: a checkpoint cannot be written: {error.strerror}; the last checkpoint is complete"
                    ) from error
                if not said:
                    said = True
                    logger.warning("%s: a checkpoint cannot be written yet: %s", where, error.strerror)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _seal(body: dict[str, Any]) -> bytes:
    return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()}) + b"\n"


def _unseal(path: Path) -> dict[str, Any]:
    """Read what `_seal` made, and check every byte of it."""
    raw = path.read_bytes()
    try:
        body = json.loads(raw)
        digest = body.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged: not what was written") from error
    if body.get("format") != FORMAT and _seal(body) == raw:
        raise CheckpointError(f"{path}: format {body.get('format')!r} is not {FORMAT}, which this version reads")
    if digest != hashlib.sha256(_canonical(body)).hexdigest() or _seal(body) != raw:
        raise CheckpointError(f"{path}: damaged: not the bytes that were written")
    assert isinstance(body, dict)
    return body
