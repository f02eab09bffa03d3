"""How many frames a strategy needs to reach a target, by what recorded runs have needed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roundelay import config
from roundelay.errors import DataError, SettingsError
from roundelay.reading import read_object

__all__ = ["Needed", "Target", "parse_target", "read_convergence"]


@dataclass(frozen=True)
class Target:
    """A score that is to be reached: at most ``value``."""

    score: str
    value: float


@dataclass(frozen=True)
class Needed:
    """What runs of one strategy needed: the median over those that reached the target, and how many did not."""

    frames: float | None
    runs: int
    missed: int
    learners: tuple[int, ...]
    """With how many learners the runs were recorded."""


def parse_target(text: str) -> Target:
    """Read ``score=value``."""
    score, equals, value = text.partition("=")
    try:
        return Target(score.strip(), float(value))
    except ValueError:
        wrong = text if equals else f"{text} has no value"
        raise SettingsError(f"--target {wrong}: expected SCORE=VALUE, as in --target loss=1.2") from None


def read_convergence(folder: Path, target: Target | None) -> tuple[Target, dict[str, Needed]]:
    """Read a run's folder, or all runs of a study's; a study brings its target along."""
    runs = list(_runs(folder))
    if not runs:
        raise DataError(f"{folder}: neither a run nor a study: no record.jsonl, and none in runs/")
    target = target or _target_of(folder)
    if target is None:
        raise SettingsError(f"{folder} names no target; give one, as in --target loss=1.2")
    found: dict[str, list[tuple[float | None, int]]] = {}
    for run in runs:
        table = config.read(run / "settings.toml")
        name = str(table.get("strategy", {}).get("name", "synchronous"))
        found.setdefault(name, []).append((_frames_to(run, target), int(table.get("learners", 1))))
    return target, {name: _needed(each) for name, each in found.items()}


def _needed(runs: list[tuple[float | None, int]]) -> Needed:
    reached = [frames for frames, _ in runs if frames is not None]
    most = len(reached) * 2 > len(runs)  # a miss counts as later than anything
    return Needed(
        frames=statistics.median(reached) if reached and most else None,
        runs=len(runs),
        missed=len(runs) - len(reached),
        learners=tuple(sorted({learners for _, learners in runs})),
    )


def _runs(folder: Path) -> Iterator[Path]:
    for run in [folder, *sorted((folder / "runs").glob("*"))]:
        cell = read_object(run / "cell.json")
        if (run / "record.jsonl").exists() and (run / "settings.toml").exists() and not cell.get("trial", False):
            yield run


def _target_of(folder: Path) -> Target | None:
    found = read_object(folder / "study.json").get("target")
    return Target(str(found["score"]), float(found["value"])) if isinstance(found, dict) else None


def _frames_to(run: Path, target: Target) -> float | None:
    """Return how many frames the whole cluster had trained when the target was first seen to be reached."""
    frames, scores = 0.0, set()
    with (run / "record.jsonl").open(encoding="utf-8") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a killed learner's unfinished line
            if event.get("event") == "step":
                frames += event.get("frames", 0)
            elif event.get("event") == "evaluate" and "seconds" not in event:
                scores |= set(event)
                if event.get(target.score, float("inf")) <= target.value:
                    return frames
    if target.score not in scores:
        known = ", ".join(sorted(scores - {"event", "who", "clock", "time", "minibatch", "epoch"})) or "none"
        raise DataError(f"{run}: no evaluation has the score {target.score!r}; there are: {known}")
    return None
