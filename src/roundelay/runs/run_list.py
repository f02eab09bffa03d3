"""List the runs below a folder, with their state and scores."""

from __future__ import annotations

import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.errors import CheckpointError
from roundelay.runs.follower import Follower
from roundelay.runs.reader import finite_numbers

DEEPEST = 4  # folders below the given one
SILENT_SECONDS = 60.0
"""A run that has written nothing for so long is taken for stopped."""


@dataclass(frozen=True)
class ListedRun:
    """A run in a list."""

    folder: str
    strategy: str
    learners: int
    state: str
    """``finished``, ``running`` or ``stopped``."""
    done: int
    """Minibatches."""
    total: int | None
    scores: dict[str, float]
    """Of the last evaluation."""
    age_seconds: float
    """Since the last write."""


def list_runs(folder: Path) -> list[ListedRun]:
    """Return the runs in a folder and below it, the latest first."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give the folder in which your runs are")
    places = {path.parent for depth in range(DEEPEST) for path in folder.glob("*/" * depth + "settings.toml")}
    return sorted(map(_listed, places), key=lambda run: run.age_seconds)


def _listed(place: Path) -> ListedRun:
    follower = Follower(place)
    follower.read()
    settings = _settings(place / "settings.toml")
    strategy = settings.get("strategy", {})
    age = min(follower.silent_seconds, time.time() - (place / "settings.toml").stat().st_mtime)
    state = "finished" if follower.finished else "running" if age < SILENT_SECONDS else "stopped"
    last = finite_numbers(follower.scores[-1]) if follower.scores else {}
    return ListedRun(
        str(place),
        str(strategy.get("name", "")) if isinstance(strategy, dict) else str(strategy),
        settings["learners"] if isinstance(settings.get("learners"), int) else 1,
        state,
        follower.steps,
        follower.total,
        {name: last[name] for name in ("loss", "error") if name in last},
        age,
    )


def _settings(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
