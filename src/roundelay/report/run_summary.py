"""The summary of separate runs: as of a study, without tuning and ranks, with a target only if one is given."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundelay.report import number_format as say
from roundelay.runs.history import Details, straggler
from roundelay.runs.reader import finite, finite_numbers
from roundelay.runs.target import Target, first_reached
from roundelay.study.schema import Answer, CellResult, StrategyRow, Summary, list_faults, no_answer
from roundelay.study.summary import make_groups, make_row, speed_up

SLOW = "straggler ×"


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each run: the end of its path, as long as needed to be unique."""
    depth, names = 1, [folder.resolve().name for folder in folders]
    while len(set(names)) < len(names) and depth < 8:
        depth += 1
        names = ["/".join(folder.resolve().parts[-depth:]) for folder in folders]
    return names


def summarise_runs(runs: dict[str, Details], target: Target | None = None) -> Summary:
    """Group runs with equal settings as seeds of one row, and rows with equal conditions."""
    cells = [_cell(name, details, target) for name, details in runs.items()]
    rows = _rows(cells, runs, target["score"] if target else "loss")
    groups = make_groups(
        sorted(rows, key=lambda row: (_conditions(row), row["learners"], row["time"]["median"] or math.inf))
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
        faults=list_faults(cells),
        notes=["These runs may differ in budget and tuning; use 'roundelay compare' for equal conditions."],
    )


def _cell(name: str, details: Details, target: Target | None) -> CellResult:
    settings, about = details.settings, details.about
    clock = details.clock or ("virtual" if about.get("on") == "simulator" else "wall")
    optimizer = settings.get("optimizer")
    last = details.points[-1]["scores"] if details.points else {}
    scored = details.model.get("scores")
    scores = finite_numbers(scored if isinstance(scored, dict) else last)
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
        problems="; ".join(details.problems),
    )


def _status(details: Details) -> tuple[str, str]:
    if details.diverged:
        return "diverged", "the loss is not finite"
    if details.finished:
        return "done", ""
    if not details.frames:
        return "failed", "; ".join(details.problems) or "no training steps"
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


def _conditions(row: StrategyRow) -> tuple[str, ...]:
    return row["on"], row["clock"], row["cluster"], row["model"]


def _even(row: StrategyRow) -> tuple[str, ...]:
    """Return the conditions without the straggler: all are compared with the same single learner."""
    on, clock, cluster, model = _conditions(row)
    return on, clock, cluster.partition(f", {SLOW}")[0], model


def answer_of_runs(rows: Sequence[StrategyRow], runs: dict[str, Details], target: Target | None) -> Answer:
    """Return the result of one run, or compare several; they are not ranked, as their conditions may differ."""
    good = [row for row in rows if row["scores"]]
    answer = no_answer("No run has a score: none was trained to the end.")
    if len(rows) == 1 and len(runs) == 1 and good:
        answer["headline"], answer["sentences"] = _one(rows[0], next(iter(runs.values())), target)
    elif good:
        answer["headline"], answer["sentences"] = _several(good)
        answer["changes"] = ["More seeds, an equal budget and a tuned learning rate: use 'roundelay compare'."]
    lost = sum(row["statuses"].get(status, 0) for row in rows for status in ("failed", "diverged", "interrupted"))
    if lost:
        answer["sentences"].append(f"{say.count(lost, 'run')} did not finish: see the table of every run.")
    return answer


def _scored(row: StrategyRow) -> str:
    said = [("loss", "held-out loss"), ("error", "frame error"), ("frame_error", "frame error")]
    parts = [
        f"{title} {say.amount(name, row['scores'][name]['median'])}" for name, title in said if name in row["scores"]
    ]
    if row["wer"] is not None:
        parts.append(f"word error rate {say.number(row['wer']['median'])} %")
    return ", ".join(parts)


def _one(row: StrategyRow, details: Details, target: Target | None) -> tuple[str, list[str]]:
    frames, seconds = details.frames, row["seconds"]["median"]
    headline = (
        f"{row['strategy']} with {say.learners(row['learners'])}: {_scored(row)} after {say.number(frames, 7)} frames "
        f"in {say.duration(seconds)} of {row['clock']} time."
    )
    sentences = []
    if shares := details.shares():
        parts = [f"{say.percent(shares.get(kind, 0.0), 2)} {activity}" for kind, activity in
                 (("compute", "computing"), ("communicate", "communicating"), ("wait", "waiting"))]  # fmt: skip
        sentences.append(f"Its learners spent {parts[0]}, {parts[1]} and {parts[2]}.")
    if details.staleness:
        mean = math.fsum(k * n for k, n in details.staleness.items()) / details.staleness.total()
        sentences.append(
            f"Gradients were {say.number(mean, 3)} steps stale on average, {max(details.staleness):g} at most."
        )
    if (sent := details.total_bytes) and frames:
        sentences.append(f"{say.size(sent)} were sent, {say.size(sent / frames)} per frame.")
    if target is not None:
        reached = row["time"]["median"]
        wanted = f"The target, {target['score']} at most {say.amount(target['score'], target['value'])},"
        sentences.append(f"{wanted} was {f'reached after {say.duration(reached)}' if reached else 'not reached'}.")
    return headline, sentences


def _several(rows: Sequence[StrategyRow]) -> tuple[str, list[str]]:
    by_loss = [row for row in rows if row["scores"].get("loss") and row["scores"]["loss"]["median"] is not None]
    best = min(by_loss or rows, key=lambda row: row["scores"]["loss"]["median"] or math.inf if by_loss else 0.0)
    headline = (
        f"{best['strategy']} with {say.learners(best['learners'])} ended best: {_scored(best)} "
        f"after {say.duration(best['seconds']['median'])} of {best['clock']} time."
    )
    sentences = []
    for clock in ("virtual", "wall"):
        own = [row for row in rows if row["clock"] == clock and row["frames_per_second"]["median"]]
        if len(own) > 1:
            fast = max(own, key=lambda row: row["frames_per_second"]["median"] or 0.0)
            rate = say.number(fast["frames_per_second"]["median"], 3)
            member = f"{fast['strategy']} with {say.learners(fast['learners'])}"
            sentences.append(f"By {clock} time, {member} is fastest: {rate} frames per second.")
    if all(len(row["cells"]) == 1 for row in rows):
        sentences.append("There is one run of each, so every difference may be chance.")
    return headline, sentences
