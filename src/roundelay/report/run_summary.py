"""A summary of runs that are no study: the same shape, without tuning, targets or ranks unless a target is given."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundelay.report.number_format import answer_of_runs
from roundelay.runs.history import Details, straggler
from roundelay.runs.reader import finite
from roundelay.runs.target import Target, first_reached
from roundelay.study.schema import CellResult, StrategyRow, Summary
from roundelay.study.summary import make_groups, make_row, speed_up

__all__ = ["run_names", "summarise_runs"]

SLOW = "straggler ×"


def run_names(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, with as much of the path as it takes to tell them apart."""
    depth, names = 1, [folder.resolve().name for folder in folders]
    while len(set(names)) < len(names) and depth < 8:
        depth += 1
        names = ["/".join(folder.resolve().parts[-depth:]) for folder in folders]
    return names


def summarise_runs(runs: dict[str, Details], target: Target | None = None) -> Summary:
    """Put runs with equal settings together as seeds of one row, and rows under equal conditions as a group."""
    cells = [_cell(name, details, target) for name, details in runs.items()]
    rows = _rows(cells, runs, target["score"] if target else "loss")
    groups = make_groups(
        sorted(rows, key=lambda row: (_place(row), row["learners"], row["time"]["median"] or math.inf))
    )
    frames = max((cell["frames"] or 0.0 for cell in cells), default=0.0)
    return Summary(
        title=next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs",
        target=target or Target(score="loss", value=math.nan),
        budget={"frames": frames},
        baseline="",
        complete=True,
        missing=[],
        answer=answer_of_runs(rows, runs, target),
        groups=groups,
        rows=[row for group in groups for row in group["rows"]],
        trials=[],
        profiles=[],
        cells=cells,
        faults=[
            {"cell": cell["name"], "status": cell["status"], "error": cell["error"]}
            for cell in cells
            if cell["status"] != "done"
        ],
        notes=[
            "These runs were put side by side as they are: nothing saw to it that they had the same budget, or that "
            "each strategy was tuned with the same care; 'roundelay compare' does."
        ],
    )


def _cell(name: str, details: Details, target: Target | None) -> CellResult:
    settings, about = details.settings, details.about
    clock = details.clock or ("virtual" if about.get("on") == "simulator" else "wall")
    optimizer = settings.get("optimizer")
    last = details.points[-1]["scores"] if details.points else {}
    scored = details.model.get("scores")
    scores = {k: n for k, v in (scored if isinstance(scored, dict) else last).items() if (n := finite(v)) is not None}
    status, error = _status(details)
    reached = first_reached(details.points, target) if target is not None else None
    return CellResult(
        name=name,
        path=str(details.folder),
        strategy=_text(settings, "strategy", "name") or "unknown",
        on=str(about.get("on") or ("simulator" if clock == "virtual" else "processes")),
        clock=clock,
        cluster=_cluster(details, clock),
        model=_text(settings, "task", "model", "name") or _text(settings, "task", "name") or "unknown",
        learners=int(finite(settings.get("learners")) or finite(about.get("learners")) or 0),
        seed=int(finite(settings.get("seed")) or 0),
        rate=(finite(optimizer.get("lr")) or 0.0) if isinstance(optimizer, dict) else 0.0,
        trial=False,
        regime="",
        period=None,
        usual_period=None,
        status=status,  # type: ignore[typeddict-item]  # one of four words, see _status
        error=error,
        scores=scores,
        seconds=details.seconds or None,
        frames=details.frames or None,
        frames_per_second=details.frames_per_second,
        reached_seconds=reached["seconds"] if reached else None,
        reached_frames=reached["frames"] if reached else None,
        curve=details.points,
        wer=next(iter(details.decoded.values()), None),
        remark="; ".join(details.problems),
    )


def _status(details: Details) -> tuple[str, str]:
    if details.diverged:
        return "diverged", "the loss is not finite"
    if details.finished:
        return "done", ""
    if not details.frames:
        return "failed", "; ".join(details.problems) or "nothing was trained"
    return "interrupted", f"no model was saved; the record ends after {details.frames:,.0f} frames"


def _text(table: dict[str, Any], *keys: str) -> str:
    found: Any = table
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _cluster(details: Details, clock: str) -> str:
    name = _text(details.settings, "cluster", "name") if clock == "virtual" else ""
    factor = straggler(details.settings, details.about)
    slow = f"{SLOW}{factor:g}" if factor > 1 else ""
    return ", ".join(part for part in (name or ("simulated" if clock == "virtual" else "this machine"), slow) if part)


def _rows(cells: list[CellResult], runs: dict[str, Details], score: str) -> list[StrategyRow]:
    together: dict[str, list[CellResult]] = {}
    for cell in cells:
        settings = {k: v for k, v in runs[cell["name"]].settings.items() if k not in ("seed", "record")}
        same = json.dumps([cell["on"], cell["clock"], cell["cluster"], settings], sort_keys=True, default=str)
        together.setdefault(same if settings else cell["name"], []).append(cell)
    rows = [make_row(seeds, score) for seeds in together.values()]
    for row in rows:
        base = [r for r in rows if r["learners"] == 1 and _even(r) == _even(row)]
        if base:
            speed_up(row, base[0])
    return rows


def _place(row: StrategyRow) -> tuple[str, ...]:
    return row["on"], row["clock"], row["cluster"], row["model"]


def _even(row: StrategyRow) -> tuple[str, ...]:
    """Return the place as if nobody were slow there: one learner is compared with, whoever else is a straggler."""
    on, clock, cluster, model = _place(row)
    return on, clock, cluster.partition(f", {SLOW}")[0], model
