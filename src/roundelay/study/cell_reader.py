"""Read the cells of a study from its folder, in any state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from roundelay.runs.history import Details
from roundelay.runs.reader import finite, finite_numbers, read_object
from roundelay.runs.target import Target, first_reached
from roundelay.study.schema import CellResult, variant_of

Status = Literal["done", "failed", "diverged", "interrupted"]
STATUSES = ("done", "failed", "diverged", "interrupted")


def read_cell(folder: Path, planned: dict[str, Any], target: Target, details: Details) -> CellResult:
    """Return the result of a started cell; a cell without a complete ``cell.json`` was interrupted."""
    outcome = read_object(folder / "runs" / planned["name"] / "cell.json")
    outcome = outcome or {"status": "interrupted", "error": "stopped during training"}
    status = outcome.get("status")
    done = status == "done"
    seconds, frames = _seconds(outcome, details) if done else None, details.frames or float(planned["frames"])
    reached = first_reached(details.points, target) if done else None  # a run that fails leaves no model
    said: dict[str, Any] = planned | {key: value for key, value in outcome.items() if key in planned}
    return {
        **variant_of(said),
        "name": planned["name"],
        "path": f"runs/{planned['name']}",
        "seed": said["seed"],
        "trial": said["trial"],
        "status": cast("Status", status if status in STATUSES else "failed"),
        "error": str(outcome.get("error", "")),
        "scores": finite_numbers(outcome.get("scores")) if done else {},
        "seconds": seconds,
        "frames": frames if done else None,
        "frames_per_second": frames / seconds if seconds else None,
        "reached_seconds": reached["seconds"] if reached is not None else None,
        "reached_frames": reached["frames"] if reached is not None else None,
        "curve": details.points,
        "wer": outcome.get("wer") if isinstance(outcome.get("wer"), dict) else None,
        "problems": "; ".join(details.problems),
    }


def _seconds(outcome: dict[str, Any], details: Details) -> float | None:
    """Return the seconds of training, without evaluations."""
    whole = finite(outcome.get("seconds"))
    return max(0.0, whole - details.evaluating) if whole is not None else None
