"""Checkpoints on disk: of every rank one part, a safetensors file and a JSON file that vouches for every byte of both.

::

    checkpoints/0000001200/rank-0.safetensors    tensors of rank 0 after minibatch 1200
    checkpoints/0000001200/rank-0.json           numbers, and the digests of both files; written last

A part is there when its JSON file is, and a checkpoint when all its parts are: there is no list to keep, and ranks
whose folders are on different hosts need not see each other's files.  Nothing is ever changed in place.
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

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from roundelay.errors import CheckpointError, SettingsError
from roundelay.files import write_bytes

__all__ = ["CheckpointSettings", "Checkpoints", "RankState", "Saver", "choose"]

FORMAT = 1
RETRY_SECONDS = 1.0
QUIET_SECONDS = 300.0  # between checkpoints where no interval is set
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointSettings:
    """How often the state of all learners is saved; by default at evaluations, when five minutes have passed."""

    every_frames: int | None = None
    """Meet and save after so many frames of the whole run, rounded down to whole minibatches."""
    every_minutes: float | None = None
    """Meet and save about every so many minutes; where that is, is foreseen from the pace so far."""
    keep: int = 3
    """So many of the last checkpoints stay."""
    retry_minutes: float = 0.0
    """How long to try again, training paused if need be, where a checkpoint cannot be written; then the run stops."""

    def __post_init__(self) -> None:
        if self.every_frames is not None and self.every_minutes is not None:
            raise SettingsError("checkpoint.every_frames and checkpoint.every_minutes are both given; one will do")
        for name in ("every_frames", "every_minutes"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise SettingsError(f"checkpoint.{name} must be above 0, not {value}")
        if self.keep < 1:
            raise SettingsError(f"checkpoint.keep must be at least 1, not {self.keep}")
        if self.retry_minutes < 0:
            raise SettingsError(f"checkpoint.retry_minutes must be at least 0, not {self.retry_minutes}")


@dataclass
class RankState:
    """The state of one rank at a meeting point: a copy that training does not touch."""

    position: int
    """Minibatches trained by all."""
    rank: int
    size: int
    """How many ranks there were, servers too."""
    attempt: int = 0
    """How many times the run was resumed before: parts of different attempts do not make a checkpoint."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    """Everything else, as JSON has it."""


class Checkpoints:
    """The checkpoints in a run's folder."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / "checkpoints"

    def positions(self) -> list[int]:
        """Return where there is something of a checkpoint, newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((int(each.name) for each in self.folder.iterdir() if each.name.isdecimal()), reverse=True)

    def place(self, position: int) -> Path:
        """Return the folder of one checkpoint."""
        return self.folder / f"{position:010d}"

    def ranks(self, position: int) -> list[int]:
        """Return the ranks whose parts are there."""
        names = (path.stem.removeprefix("rank-") for path in self.place(position).glob("rank-*.json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def write(self, snapshot: RankState) -> None:
        """Write a part: its tensors, then what vouches for them."""
        for folder in (self.folder, self.place(snapshot.position)):  # not the run's own: it is there, or is lost
            folder.mkdir(exist_ok=True)
        stem = self._stem(snapshot.position, snapshot.rank)
        data = save(snapshot.tensors)
        write_bytes(stem.with_suffix(".safetensors"), data)
        body = {
            "format": FORMAT,
            "position": snapshot.position,
            "rank": snapshot.rank,
            "size": snapshot.size,
            "attempt": snapshot.attempt,
            "state": snapshot.state,
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
        except SafetensorError as error:  # somebody wrote it and vouched for it
            raise CheckpointError(f"{tensors}: {error}") from error
        return RankState(position, rank, body["size"], body["attempt"], found, body["state"])

    def remove(self, positions: Iterable[int], rank: int) -> None:
        """Remove a rank's part of these checkpoints; what vouches for it first."""
        for position in positions:
            for suffix in (".json", ".safetensors"):
                self._stem(position, rank).with_suffix(suffix).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the last one to leave
                self.place(position).rmdir()

    def clean(self, position: int | None) -> None:
        """Remove all checkpoints after ``position``, and what a killed process has left half-written."""
        for other in self.positions():
            if position is None or other > position:
                shutil.rmtree(self.place(other), ignore_errors=True)
        for left in [*self.run.glob(".*.[0-9]*"), *self.folder.glob("*/.*.[0-9]*")]:
            left.unlink(missing_ok=True)

    def held(self, seat: int, seats: int) -> dict[str, Any]:
        """Return which parts this process can answer for, by position, and what is damaged.

        Of a checkpoint of ``size`` ranks, seat k of ``seats`` takes the parts k, k + seats, ….
        """
        found: dict[str, Any] = {}
        damaged: list[str] = []
        for position in self.positions():
            try:
                first = self.read(position, seat) if seat in self.ranks(position) else None
                if first is None:
                    continue
                parts = list(range(seat, first.size, seats))
                for part in parts[1:]:
                    self.read(position, part)
            except CheckpointError as error:
                damaged.append(str(error))
            else:
                found[str(position)] = {"size": first.size, "attempt": first.attempt, "parts": parts}
        return {"found": found, "damaged": damaged}

    def _stem(self, position: int, rank: int) -> Path:
        return self.place(position) / f"rank-{rank}"


def choose(reports: Iterable[dict[str, Any]]) -> dict[str, int] | None:
    """Return the newest checkpoint all parts of which somebody answers for."""
    parts: dict[tuple[int, int, int], set[int]] = {}
    for report in reports:
        for position, about in report["found"].items():
            parts.setdefault((int(position), about["attempt"], about["size"]), set()).update(about["parts"])
    whole = [key for key, there in parts.items() if there >= set(range(key[2]))]
    if not whole:
        return None
    position, attempt, size = max(whole)
    return {"position": position, "attempt": attempt, "size": size}


class Saver:
    """Writes checkpoints in a thread, while training goes on; shared by all learners of a process."""

    def __init__(self, run: Path, settings: CheckpointSettings | None = None) -> None:
        self.settings = settings or CheckpointSettings()
        self.checkpoints = Checkpoints(run)
        self.attempt = 0
        self.at = time.monotonic()  # of the last checkpoint
        self._pool: ThreadPoolExecutor | None = None
        self._writing: list[Future[None]] = []
        self._closing = threading.Event()

    def due(self) -> bool:
        """Tell whether it is time, where that does not go by frames."""
        minutes = self.settings.every_minutes
        return time.monotonic() - self.at >= (QUIET_SECONDS if minutes is None else 60.0 * minutes)

    def submit(self, snapshot: RankState) -> None:
        """Have a part written; those of the checkpoint before are there on all ranks by now."""
        self.at = time.monotonic()
        snapshot.attempt = self.attempt
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._writing.append(self._pool.submit(self._write, snapshot))

    def check(self) -> None:
        """Raise what writing has raised, without waiting."""
        while self._writing and self._writing[0].done():
            self._writing.pop(0).result()

    def wait(self) -> None:
        """Wait until all is written, and raise what that has raised."""
        while self._writing:
            self._writing.pop(0).result()

    def close(self) -> None:
        """Wait for what is under way, without trying again, and end the thread."""
        self._closing.set()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _write(self, snapshot: RankState) -> None:
        before = [position for position in self.checkpoints.positions() if position < snapshot.position]
        self._insist(lambda: self.checkpoints.write(snapshot))
        # Those before are whole; this one may not be yet on other ranks, and so one before it stays in any case.
        old = before[max(1, self.settings.keep - 1) :]
        with contextlib.suppress(OSError):  # then they stay a little longer
            self.checkpoints.remove(old, snapshot.rank)
            for position in old if snapshot.rank == 0 else []:  # parts of ranks that are no more
                for rank in self.checkpoints.ranks(position):
                    self.checkpoints.remove([position], rank)
                shutil.rmtree(self.checkpoints.place(position), ignore_errors=True)

    def _insist(self, action: Callable[[], None]) -> None:
        """Try, and try again for as long as patience lasts."""
        deadline, said = time.monotonic() + 60.0 * self.settings.retry_minutes, False
        while True:
            try:
                return action()
            except OSError as error:
                where = error.filename or self.checkpoints.folder
                if time.monotonic() >= deadline or self._closing.wait(RETRY_SECONDS):
                    raise CheckpointError(
                        f"{where}: a checkpoint cannot be written: {error.strerror}; the last checkpoint is whole"
                    ) from error
                if not said:
                    said = True
                    logger.warning("%s: a checkpoint cannot be written yet: %s", where, error.strerror)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _seal(body: dict[str, Any]) -> bytes:
    return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()}) + b"\n"


def _unseal(path: Path) -> dict[str, Any]:
    """Read what `_seal` made, and see that not one byte of it is another."""
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
