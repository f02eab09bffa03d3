"""Read what runs have left behind, whatever state it is in; what is wrong is said, never hidden and never fatal."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Problems", "finite", "read_lines", "read_object", "read_settings", "record_files"]

Problems = list[str]
"""What was wrong with files, a line each; readers add to it."""

_decode = msgspec.json.Decoder().decode


def finite(value: object) -> float | None:
    """Return a number as a float; ``None`` stands for anything else, NaN and infinity included."""
    kind = type(value)  # not isinstance: a record has millions, and type() is quick but narrows nothing
    if kind is float:
        return value if -math.inf < value < math.inf else None  # type: ignore[operator,return-value]
    return float(value) if kind is int else None  # type: ignore[arg-type]


def read_object(path: Path, problems: Problems | None = None, *, needed: bool = False) -> dict[str, Any]:
    """Read a JSON object; an empty one where there is none, or none that is whole."""
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
    problems.append(f"{path.name} holds no object")
    return {}


def read_settings(path: Path, problems: Problems) -> dict[str, Any]:
    """Read a TOML file; an empty table where there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
    except (OSError, ValueError):
        problems.append(f"{path.name} cannot be read")
    return {}


def record_files(folder: Path) -> list[Path]:
    """Return the record of a run, or its parts where they were never merged because the run was killed."""
    whole = folder / "record.jsonl"
    return [whole] if whole.is_file() else sorted(folder.glob("record-*.jsonl"))


def read_lines(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; lines that are none are counted as a problem."""
    broken, last = 0, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                read = _parse(line)
                if isinstance(read, dict):
                    yield read
                elif line.strip():
                    broken, last = broken + 1, number
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    if broken == 1:
        problems.append(f"{path.name}: line {last} is not whole")
    elif broken:
        problems.append(f"{path.name}: {broken} lines are not whole, the last of them line {last}")


def _parse(line: bytes) -> Any:
    try:
        return _decode(line)
    except msgspec.DecodeError:
        pass
    try:
        return json.loads(line)  # which reads NaN, too, as records of diverged runs have it
    except ValueError:
        return None
