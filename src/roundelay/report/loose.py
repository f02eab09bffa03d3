"""A summary of runs that are no study: the same shape, without tuning, targets or ranks unless a target is given."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundelay.reading import finite
from roundelay.report.details import Details, straggler
from roundelay.report.words import answer_of_runs
from roundelay.study.schema import Cell, Group, Key, Row, Spread, Summary, Target

__all__ = ["run_names", "spread", "summarise_runs"]

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
    rows = _rows(cells, runs, target)
    groups = _groups(rows)
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


def _cell(name: str, details: Details, target: Target | None) -> Cell:
    settings, about = details.settings, details.about
    clock = details.clock or ("virtual" if about.get("on") == "simulator" else "wall")
    optimizer = settings.get("optimizer")
    last = details.points[-1]["scores"] if details.points else {}
    scored = details.model.get("scores")
    scores = {k: n for k, v in (scored if isinstance(scored, dict) else last).items() if (n := finite(v)) is not None}
    status, error = _status(details)
    reached = None
    if target is not None:
        name_of, value = target["score"], target["value"]
        reached = next((p for p in details.points if p["scores"].get(name_of, math.inf) <= value), None)
    return Cell(
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


def _rows(cells: list[Cell], runs: dict[str, Details], target: Target | None) -> list[Row]:
    together: dict[str, list[Cell]] = {}
    for cell in cells:
        settings = {k: v for k, v in runs[cell["name"]].settings.items() if k not in ("seed", "record")}
        same = json.dumps([cell["on"], cell["clock"], cell["cluster"], settings], sort_keys=True, default=str)
        together.setdefault(same if settings else cell["name"], []).append(cell)
    rows = [_row(seeds, target) for seeds in together.values()]
    for row in rows:
        base = [r for r in rows if r["learners"] == 1 and _even(r) == _even(row)]
        if base:
            _speed(row, base[0])
    return rows


def _place(row: Row) -> tuple[str, ...]:
    return row["on"], row["clock"], row["cluster"], row["model"]


def _even(row: Row) -> tuple[str, ...]:
    """Return the place as if nobody were slow there: one learner is compared with, whoever else is a straggler."""
    on, clock, cluster, model = _place(row)
    return on, clock, cluster.partition(f", {SLOW}")[0], model


def _speed(row: Row, base: Row) -> None:
    own, one = row["frames_per_second"]["median"], base["frames_per_second"]["median"]
    if own and one:
        row["throughput_speedup"] = own / one
        row["throughput_efficiency"] = own / one / max(row["learners"], 1)
    time, alone = row["time"]["median"], base["time"]["median"]
    if time and alone:
        row["speedup"], row["efficiency"] = alone / time, alone / time / max(row["learners"], 1)


def _row(seeds: list[Cell], target: Target | None) -> Row:
    first, names = seeds[0], sorted({name for cell in seeds for name in cell["scores"]})
    wers = [finite(cell["wer"].get("wer")) if cell["wer"] else None for cell in seeds]
    scores = {name: spread([cell["scores"].get(name) for cell in seeds]) for name in names}
    statuses: dict[str, int] = {}
    for cell in seeds:
        statuses[cell["status"]] = statuses.get(cell["status"], 0) + 1
    return Row(
        strategy=first["strategy"],
        on=first["on"],
        clock=first["clock"],
        cluster=first["cluster"],
        model=first["model"],
        learners=first["learners"],
        rate=first["rate"],
        seeds=[cell["seed"] for cell in seeds],
        cells=[cell["name"] for cell in seeds],
        regime="",
        period=None,
        usual_period=None,
        statuses=statuses,
        hits=sum(cell["reached_seconds"] is not None for cell in seeds),
        rank=None,
        time=spread([cell["reached_seconds"] for cell in seeds]),
        frames=spread([cell["reached_frames"] for cell in seeds]),
        score=scores.get(target["score"] if target else "loss", spread([None] * len(seeds))),
        scores=scores,
        seconds=spread([cell["seconds"] for cell in seeds]),
        frames_per_second=spread([cell["frames_per_second"] for cell in seeds]),
        speedup=None,
        efficiency=None,
        throughput_speedup=None,
        throughput_efficiency=None,
        wer=spread(wers) if any(value is not None for value in wers) else None,
    )


def spread(values: Sequence[float | None]) -> Spread:
    """Return median and range; what is missing counts as larger than anything."""
    ordered = sorted(math.inf if value is None else value for value in values)
    ends = (statistics.median_high(ordered), ordered[0], ordered[-1]) if ordered else (math.inf,) * 3
    median, low, high = (None if math.isinf(end) else end for end in ends)
    return Spread(median=median, low=low, high=high, values=list(values))


def _groups(rows: list[Row]) -> list[Group]:
    groups: dict[tuple[Any, ...], Group] = {}
    for row in sorted(rows, key=lambda row: (_place(row), row["learners"], row["time"]["median"] or math.inf)):
        where = (*_place(row), row["learners"])
        if where not in groups:
            key = Key(
                on=row["on"],  # type: ignore[typeddict-item]  # whatever runtime there is
                clock=row["clock"],  # type: ignore[typeddict-item]  # as the record has it
                cluster=row["cluster"],
                model=row["model"],
                learners=row["learners"],
            )
            groups[where] = Group(
                key=key, baseline="", baseline_time=None, rows=[], answer=answer_of_runs([], {}, None)
            )
        groups[where]["rows"].append(row)
    return list(groups.values())
