"""Read the files of a run in any state: what is wrong is reported, never hidden and never fatal."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

Problems = list[str]
"""What is wrong with files, one line each; readers add to it."""

_decode = msgspec.json.Decoder().decode


def finite(value: object) -> float | None:
    """Return a number as a float, or ``None`` for anything else, also for NaN and infinity."""
    kind = type(value)  # not isinstance: a record has millions of numbers, and type() is faster
    if kind is float:
        return value if -math.inf < value < math.inf else None  # type: ignore[operator,return-value]
    return float(value) if kind is int else None  # type: ignore[arg-type]


def finite_numbers(table: object) -> dict[str, float]:
    """Return the finite numbers of a table, by name; JSON has no others."""
    items = table.items() if isinstance(table, dict) else ()
    return {name: number for name, value in items if (number := finite(value)) is not None}


def member_order(member: str) -> tuple[str, int]:
    """Return a key that sorts ``learner 2`` before ``learner 10``."""
    name, _, number = member.rpartition(" ")
    return (name, int(number)) if number.isdigit() else (member, -1)


def read_object(path: Path, problems: Problems | None = None, *, needed: bool = False) -> dict[str, Any]:
    """Read a JSON object; return an empty one if it is missing or incomplete."""
    problems = [] if problems is None else problems
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            problems.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError, RecursionError):
        problems.append(f"{path.name} cannot be read")
        return {}
    if isinstance(read, dict):
        return read
    problems.append(f"{path.name} is not a JSON object")
    return {}


def read_settings(path: Path, problems: Problems) -> dict[str, Any]:
    """Read a TOML file; return an empty table if it is missing."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except (OSError, ValueError):
        problems.append(f"{path.name} cannot be read")
    return {}


def record_files(folder: Path) -> list[Path]:
    """Return the record of a run, or its parts if they were never merged because the run was killed."""
    whole = folder / "record.jsonl"
    return [whole] if whole.is_file() else sorted(folder.glob("record-*.jsonl"))


def read_lines(path: Path, problems: Problems | None = None) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; other lines are counted as a problem."""
    problems = [] if problems is None else problems
    broken, last = 0, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if (read := parse_line(line)) is not None:
                    yield read
                elif line.strip():
                    broken, last = broken + 1, number
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    if broken == 1:
        problems.append(f"{path.name}: line {last} is incomplete")
    elif broken:
        problems.append(f"{path.name}: {broken} lines are incomplete, the last is line {last}")


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, or ``None`` if there is none."""
    try:
        read = _decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            read = json.loads(line)  # reads NaN too, which the records of diverged runs have
        except (ValueError, RecursionError):
            return None
    return read if isinstance(read, dict) else None


class Tail:
    """The end of a file that another process writes; `new_lines` returns what has been added since the last call."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset

    def new_lines(self) -> list[bytes]:
        """Return the lines that have become complete."""
        with self._path.open("rb") as file:
            self._offset = min(self._offset, self._path.stat().st_size)  # a resumed run cuts its records
            file.seek(self._offset)
            new = file.read()
        end = new.rfind(b"\n") + 1  # an incomplete line may follow
        self._offset += end
        return new[:end].splitlines()
