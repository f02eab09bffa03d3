"""The record that a run writes: one JSON object per line, the same on every runtime."""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from roundelay.errors import CheckpointError
from roundelay.files import write_bytes
from roundelay.runs.reader import finite, parse_line

Kind = Literal["compute", "communicate", "wait", "serve", "evaluate"]
KINDS: tuple[Kind, ...] = ("compute", "communicate", "wait", "serve", "evaluate")


class Record:
    """The record of one learner, or of a whole simulated cluster.

    Lines are ``{"event": …, "clock": "virtual" or "wall", "time": seconds, …}``.  A span is an event of one of the
    `KINDS` with its ``seconds``; after ``spans`` of them, further spans of a learner count only in its totals.
    Spans of evaluating are always written: they are few, and readers subtract them from every later time.
    """

    def __init__(self, file: TextIO | Path | None, *, clock: str, spans: int = 2000) -> None:
        self.clock, self.spans = clock, spans
        self.totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._owned = isinstance(file, Path)
        self._path = file if isinstance(file, Path) else None
        self._file: TextIO | None = file.open("a", encoding="utf-8") if isinstance(file, Path) else file
        self._kept: dict[str, int] = defaultdict(int)

    def write(self, event: str, member: str, time: float, **fields: Any) -> None:
        """Write one event of ``member`` (``learner 3``, ``server 0``)."""
        if self._file is not None:
            line = {"event": event, "member": member, "clock": self.clock, "time": round(time, 9), **fields}
            with self._writing():
                self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=True) + "\n")

    def span(self, kind: Kind, member: str, begin: float, end: float, **fields: Any) -> None:
        """Write that ``member`` spent this time on ``kind``."""
        if end <= begin:
            return
        self.totals[member][kind] += end - begin
        if self._kept[member] < self.spans or kind == "evaluate":
            self._kept[member] += 1
            self.write(kind, member, begin, seconds=round(end - begin, 9), **fields)

    def add(self, member: str, name: str, amount: float) -> None:
        """Add to a total of ``member``, such as the bytes that it has sent."""
        self.totals[member][name] += amount

    def close(self, time: float) -> None:
        """Write the totals and end the record."""
        for member, totals in sorted(self.totals.items()):
            self.write("totals", member, time, **{name: round(value, 9) for name, value in sorted(totals.items())})
        self.abandon()

    def abandon(self) -> None:
        """End the record; a second call does nothing."""
        self.flush()
        file, self._file = self._file, None  # another thread may still write
        if self._owned and file is not None:
            file.close()

    def mark(self) -> dict[str, Any]:
        """Return the state of the record for `rewind`: the file, its length and the totals."""
        self.flush()
        where: dict[str, Any] = {"file": None, "length": 0}
        if self._file is not None and self._path is not None:
            where = {"file": self._path.name, "length": os.fstat(self._file.fileno()).st_size}
        return where | {
            "totals": {member: dict(totals) for member, totals in self.totals.items()},
            "kept": dict(self._kept),
        }

    def rewind(self, mark: dict[str, Any]) -> None:
        """Return to a `mark`, perhaps of another process: everything after it will happen again."""
        self.flush()
        if self._path is not None and mark["file"] is not None:
            path = self._path.with_name(mark["file"])
            if path.exists() and path.stat().st_size > mark["length"]:
                os.truncate(path, mark["length"])
        self._kept = defaultdict(int, mark["kept"])
        self.totals.clear()
        for member, totals in mark["totals"].items():
            self.totals[member].update(totals)

    def restart(self) -> None:
        """Forget everything."""
        self.rewind(
            {"file": self._path.name if self._path is not None else None, "length": 0, "totals": {}, "kept": {}}
        )

    def flush(self) -> None:
        """Write all lines so far to the file."""
        if self._file is not None:
            with self._writing():
                self._file.flush()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Name the file in an error of the disk, and write no more to it."""
        try:
            yield
        except OSError as error:
            file, self._file = self._file, None
            if file is not None and self._owned:
                with contextlib.suppress(OSError):
                    file.close()
            where = self._path if self._path is not None else "the record"
            raise CheckpointError(
                f"{where}: cannot be written: {error.strerror}; the last checkpoint is complete"
            ) from error


def merge_records(folder: Path, *, keep: bool = False) -> None:
    """Merge the learners' ``record-*.jsonl`` into one ``record.jsonl``, sorted by time, and remove the parts.

    The lines of an earlier run in ``record.jsonl`` stay in front.  The incomplete line of a killed learner is dropped.
    With ``keep`` the parts stay: if learners are lost and numbered again, they tell which learner was which.
    """
    parts, whole = sorted(folder.glob("record-*.jsonl")), folder / "record.jsonl"
    lines = (line for part in parts for line in part.read_bytes().splitlines())
    read = ((parse_line(line) or {}, line) for line in lines)
    timed = [(time, line) for event, line in read if (time := finite(event.get("time"))) is not None]
    timed.sort(key=lambda pair: pair[0])
    before = whole.read_bytes() if whole.exists() and not keep else b""
    write_bytes(whole, before + b"".join(line + b"\n" for _, line in timed))
    for part in parts if not keep else []:
        part.unlink()
