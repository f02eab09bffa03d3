"""The cells of a study as its folder has them, whatever state they are in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal, cast

from roundelay.reading import read_object
from roundelay.study.schema import Cell, Point, Target

__all__ = ["read_cell", "read_curve"]

Status = Literal["done", "failed", "diverged", "interrupted"]
STATUSES = ("done", "failed", "diverged", "interrupted")
EVALUATION = '"event":"evaluate"'
STEP = '"event":"step"'
NOT_SCORES = {"event", "who", "clock", "time", "minibatch", "epoch", "seconds"}


def read_cell(folder: Path, planned: dict[str, Any], target: Target) -> Cell | None:
    """Read what came of a planned cell; one that was begun and not finished is interrupted, ``None`` is not begun."""
    run = folder / "runs" / planned["name"]
    if not run.is_dir():
        return None
    found = read_object(run / "cell.json")
    outcome = found or {"status": "interrupted", "error": "stopped while it was computed"}
    status = outcome.get("status")
    curve, frames, remark = read_curve(run)
    finished = bool(found) and status == "done"
    seconds = outcome.get("seconds") if finished else None
    frames = frames if frames else float(planned["frames"])
    hits = (p for p in curve if p["scores"].get(target["score"], math.inf) <= target["value"])
    reached = next(hits, None) if finished else None  # what ends badly has not brought a model
    said: dict[str, Any] = planned | {key: value for key, value in outcome.items() if key in planned}
    cell: Cell = {
        "name": planned["name"],
        "path": f"runs/{planned['name']}",
        "strategy": said["strategy"],
        "on": said["on"],
        "clock": said["clock"],
        "cluster": said["cluster"],
        "model": said["model"],
        "learners": said["learners"],
        "seed": said["seed"],
        "rate": said["rate"],
        "trial": said["trial"],
        "regime": said["regime"],
        "period": said.get("period"),
        "usual_period": said.get("usual_period"),
        "status": cast("Status", status if status in STATUSES else "failed"),
        "error": str(outcome.get("error", "")),
        "scores": _numbers(outcome.get("scores")) if finished else {},
        "seconds": seconds,
        "frames": frames if finished else None,
        "frames_per_second": frames / seconds if finished and seconds else None,
        "reached_seconds": reached["seconds"] if reached is not None else None,
        "reached_frames": reached["frames"] if reached is not None else None,
        "curve": curve,
        "wer": outcome.get("wer") if isinstance(outcome.get("wer"), dict) else None,
        "remark": remark,
    }
    return cell


def read_curve(run: Path) -> tuple[list[Point], float, str]:
    """Return a run's evaluations, the frames that it has trained, and what is wrong with its record."""
    path = run / "record.jsonl"
    paths = [path] if path.exists() else sorted(run.glob("record-*.jsonl"))
    if not paths:
        return [], 0.0, "there is no record"
    evaluations: list[dict[str, Any]] = []
    minibatches: dict[int, float] = {}
    torn = 0
    for each in paths:
        for line in each.read_text(encoding="utf-8", errors="replace").splitlines():
            if STEP not in line and EVALUATION not in line and line.endswith("}"):
                continue
            try:
                event = json.loads(line)
                if event["event"] == "step":
                    minibatches[int(event["minibatch"])] = float(event["frames"])
                elif event["event"] == "evaluate" and "minibatch" in event:
                    evaluations.append(event)
            except (ValueError, KeyError, TypeError):
                torn += 1
    remark = f"{torn} line{'s' if torn > 1 else ''} of the record cannot be read" if torn else ""
    return _points(evaluations, minibatches), sum(minibatches.values()), remark


def _points(evaluations: list[dict[str, Any]], minibatches: dict[int, float]) -> list[Point]:
    """Count the frames of the minibatches before each evaluation."""
    points: list[Point] = []
    numbers, k, frames = sorted(minibatches), 0, 0.0
    for event in sorted(evaluations, key=lambda event: event["minibatch"]):
        while k < len(numbers) and numbers[k] < event["minibatch"]:
            frames += minibatches[numbers[k]]
            k += 1
        scores = _numbers({name: value for name, value in event.items() if name not in NOT_SCORES})
        points.append({"frames": frames, "minibatch": event["minibatch"], "seconds": event["time"], "scores": scores})
    return points


def _numbers(scores: Any) -> dict[str, float]:
    """Keep what is finite: JSON has no other numbers."""
    if not isinstance(scores, dict):
        return {}
    return {k: float(v) for k, v in scores.items() if isinstance(v, int | float) and math.isfinite(v)}
