"""What must be equal on all learners: versions, code, settings, data.  It is compared at the first rendezvous."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roundelay.config import FILE_NAME, is_file_name
from roundelay.errors import Mismatch
from roundelay.runs.run_folder import versions

Print = dict[str, str]


def fingerprint(settings: Mapping[str, Any]) -> Print:
    """Return by name what must be equal on all learners; the folder of the data may differ."""
    task = settings.get("task", {})
    data = task.get("data") if isinstance(task, Mapping) else None
    plain = dict(settings) | {"task": {key: value for key, value in task.items() if key != "data"}}
    made = {f"{name} version": str(text) for name, text in versions().items() if name != "commit"}
    made |= {"code": _digest_of_code(), **({"data": _digest_of_data(Path(data))} if data else {})}
    made |= {f"code of {name}": digest for name, digest in _digests_of(settings).items()}
    return made | _flat(plain, "")


def compare(prints: Sequence[Print], names: Sequence[str]) -> None:
    """Raise a `Mismatch` that names the first difference between two learners, with both values."""
    first = prints[0]
    for name, other in zip(names[1:], prints[1:], strict=True):
        for key in [*first, *(key for key in other if key not in first)]:
            mine, theirs = first.get(key, "nothing"), other.get(key, "nothing")
            if mine != theirs:
                raise Mismatch(f"{names[0]} and {name} differ in {key}: {mine} and {theirs}; all must run the same")


def _flat(table: Mapping[str, Any], prefix: str) -> Print:
    made: Print = {}
    for key, value in sorted(table.items()):
        if isinstance(value, Mapping):
            made |= _flat(value, f"{prefix}{key}.")
        else:
            made[prefix + key] = json.dumps(Path(value).name if is_file_name(value) else value)
    return made


@functools.cache
def _digest_of_code() -> str:
    root = Path(__file__).resolve().parents[1]
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def _digest_of_data(folder: Path) -> str:
    """Return the digest in the folder of prepared data, or a text that says that there is none."""
    try:
        return str(json.loads((folder / "prepared.json").read_text(encoding="utf-8"))["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return "no prepared data"


def _digests_of(settings: Any) -> dict[str, str]:
    """Return the digest of each Python file that is named in settings, by the name of the file."""
    if isinstance(settings, Mapping):
        return {name: digest for each in settings.values() for name, digest in _digests_of(each).items()}
    if isinstance(settings, list):
        return {name: digest for each in settings for name, digest in _digests_of(each).items()}
    found = FILE_NAME.fullmatch(settings) if isinstance(settings, str) else None
    if found is None:
        return {}
    path = Path(found["file"])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "no such file"}
