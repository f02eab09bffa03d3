"""How many frames a strategy needs to reach a target, from recorded runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roundelay import config
from roundelay.errors import DataError, SettingsError
from roundelay.runs.history import Details, read_details
from roundelay.runs.reader import read_object, record_files
from roundelay.runs.target import Target, first_reached


@dataclass(frozen=True)
class Needed:
    """Frames that runs of one strategy needed: the median of those that reached the target; the others are missed."""

    frames: float | None
    runs: int
    missed: int
    learners: tuple[int, ...]
    """Numbers of learners in these runs."""


def parse_target(text: str) -> Target:
    """Read ``score=value``."""
    score, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not score.strip() or not math.isfinite(number):
        raise SettingsError(f"--target {text}: use SCORE=VALUE, as in --target loss=1.2")
    return Target(score=score.strip(), value=number)


def read_convergence(folder: Path, target: Target | None) -> tuple[Target, dict[str, Needed]]:
    """Read one run, or all runs of a study; a study has its own target."""
    runs = list(_runs(folder))
    if not runs:
        raise DataError(f"{folder}: neither a run nor a study: no record.jsonl here or in runs/")
    target = target or _target_of(folder)
    if target is None:
        raise SettingsError(f"{folder}: no target; give one, as in --target loss=1.2")
    found: dict[str, list[tuple[float | None, int]]] = {}
    scores: set[str] = set()
    for run in runs:
        table, details = config.read(run / "settings.toml"), read_details(run)
        scores.update(*(point["scores"] for point in details.points))
        name = str(table.get("strategy", {}).get("name", "synchronous"))
        found.setdefault(name, []).append((_frames_to(details, target), int(table.get("learners", 1))))
    if target["score"] not in scores:
        known = ", ".join(sorted(scores)) or "none"
        raise DataError(f"{folder}: no evaluation has the score {target['score']!r}; use one of: {known}")
    return target, {name: _needed(each) for name, each in found.items()}


def _needed(runs: list[tuple[float | None, int]]) -> Needed:
    reached = [frames for frames, _ in runs if frames is not None]
    most = len(reached) * 2 > len(runs)  # a miss counts as infinitely late
    return Needed(
        frames=statistics.median(reached) if reached and most else None,
        runs=len(runs),
        missed=len(runs) - len(reached),
        learners=tuple(sorted({learners for _, learners in runs})),
    )


def _runs(folder: Path) -> Iterator[Path]:
    for run in [folder, *sorted((folder / "runs").glob("*"))]:
        cell = read_object(run / "cell.json")
        if record_files(run) and (run / "settings.toml").exists() and not cell.get("trial", False):
            yield run


def _target_of(folder: Path) -> Target | None:
    found = read_object(folder / "study.json").get("target")
    return Target(score=str(found["score"]), value=float(found["value"])) if isinstance(found, dict) else None


def _frames_to(details: Details, target: Target) -> float | None:
    """Return the frames that all learners had trained at the first evaluation that reached the target."""
    if details.diverged or read_object(details.folder / "cell.json").get("status", "done") != "done":
        return None  # a run that fails leaves no model
    reached = first_reached(details.points, target)
    return reached["frames"] if reached is not None else None
