"""Write and read arrays as safetensors files with a JSON description; files are written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from roundelay.errors import DataError
from roundelay.files import replacing

Array = np.ndarray[Any, np.dtype[Any]]
Features = Mapping[str, Array]
"""By utterance: (frames, features)."""
Transcripts = Mapping[str, Sequence[str]]
"""By utterance: its words."""
Speakers = Mapping[str, str]
"""By utterance: its speaker."""


def write_tensors(path: Path, arrays: Mapping[str, Array], description: Mapping[str, Any]) -> None:
    """Write arrays and their description to one file that appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with replacing(path) as partial:
        partial.write_bytes(save(whole, metadata={"description": json.dumps(description)}))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read arrays and description; refuse a file that does not describe itself as ``kind``."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no iterator of its own
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a {kind} was expected here") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: cannot be read as a {kind} ({error})") from None
    description = json.loads(metadata.get("description", "{}"))
    if description.get("kind") != kind:
        raise DataError(f"{path}: contains {description.get('kind', 'something else')!r}, not a {kind}")
    return arrays, description


def tensor(array: Array) -> torch.Tensor:
    """Return an array as a float32 tensor, without a copy if possible (memory maps are read-only)."""
    return torch.from_numpy(np.require(array, np.float32, ["C", "W"]))


def product(a: Array, b: Array, dtype: type[np.floating[Any]] = np.float32) -> Array:
    """Multiply matrices with torch, whose threads, unlike numpy's, can be limited while running."""
    left, right = (torch.from_numpy(np.require(x, dtype, ["C", "W"])) for x in (a, b))
    return (left @ right).numpy()
