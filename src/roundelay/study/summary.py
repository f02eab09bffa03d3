"""The summary of a study: medians and ranges, time to target, speed-up, ranking, and the short answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from roundelay.errors import CheckpointError
from roundelay.runs.history import Details, read_details
from roundelay.runs.reader import read_object
from roundelay.runs.target import Target
from roundelay.study.answer import answer_group, answer_study
from roundelay.study.cell_reader import read_cell
from roundelay.study.schema import (
    CellResult,
    Key,
    Profile,
    RowGroup,
    Spread,
    StrategyRow,
    Summary,
    Trials,
    list_faults,
    no_answer,
    variant_of,
)
from roundelay.study.statistics import better, choose_rate, number_or_inf, settled, spread

Like = tuple[str, str, str, str, int]
"""The conditions that all seeds and trials of a row share."""
FACTORS = [1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0]


def summarise(folder: Path) -> Summary:
    """Read ``study.json`` and every ``runs/*/cell.json`` with its record; the result is plain JSON (`schema`)."""
    return summarise_study(folder)[0]


def summarise_study(folder: Path, watch: Callable[[str], None] = lambda _: None) -> tuple[Summary, dict[str, Details]]:
    """Return the summary, and the history of every started run by name; ``watch`` is called with the current one."""
    about = read_object(folder / "study.json")
    if not {"title", "target", "budget", "baseline", "cells"} <= about.keys():
        raise CheckpointError(f"{folder}: study.json is missing or unreadable; give the folder of a study")
    target: Target = about["target"]
    every = {planned["name"]: planned for planned in about["cells"]}
    started = [name for name in every if (folder / "runs" / name).is_dir()]
    missing = [name for name in every if name not in set(started)]
    runs = {}
    for index, name in enumerate(started, start=1):
        watch(f"reading run {index} of {len(started)}: {name}")
        runs[name] = read_details(folder / "runs" / name)
    cells = [read_cell(folder, every[name], target, runs[name]) for name in started]
    rows = [make_row(alike, target["score"]) for alike in _alike(cell for cell in cells if not cell["trial"])]
    ones = {_where(row): row for row in rows if row["strategy"] == about["baseline"] and row["learners"] == 1}
    for row in rows:
        if _where(row) in ones:
            speed_up(row, ones[_where(row)])
    last = about.get("tuning", {}).get("evaluations", 1)  # older studies used the last one
    used = {_like(cell): cell["rate"] for cell in cells if not cell["trial"] and cell["rate"] is not None}
    trials = [_trials(alike, target, last, used) for alike in _alike(cell for cell in cells if cell["trial"])]
    groups = make_groups(rows)
    for group in groups:
        one = ones.get(_where(group["rows"][0]))
        group["baseline"], group["baseline_time"] = about["baseline"], one["time"]["median"] if one else None
        _rank(group["rows"])
    for group in groups:
        group["answer"] = answer_group(group, groups, target, trials=trials, cells=cells)
    summary: Summary = {
        "title": about["title"],
        "target": target,
        "budget": about["budget"],
        "baseline": about["baseline"],
        "complete": not missing and not any(cell["status"] == "interrupted" for cell in cells),
        "missing": missing,
        "answer": answer_study(groups, target, missing=len(missing), budget=about["budget"]["frames"]),
        "groups": groups,
        "rows": rows,
        "trials": trials,
        "profiles": [profile for clock in ("virtual", "wall") for profile in _profiles(groups, clock)],
        "cells": cells,
        "faults": list_faults(cells),
        "notes": _notes(about, cells),
    }
    return summary, runs


def _alike(cells: Iterable[CellResult]) -> list[list[CellResult]]:
    """Group cells that differ only by seed or rate."""
    groups: dict[Like, list[CellResult]] = {}
    for cell in cells:
        groups.setdefault(_like(cell), []).append(cell)
    return list(groups.values())


def _like(cell: CellResult) -> Like:
    return cell["strategy"], cell["on"], cell["cluster"], cell["model"], cell["learners"]


def make_row(cells: list[CellResult], score: str) -> StrategyRow:
    """Combine the seeds of one strategy under one set of conditions; ``score`` is the one of the target."""
    cells = sorted(cells, key=lambda cell: cell["seed"])
    statuses = [cell["status"] for cell in cells]
    names = list(dict.fromkeys(name for cell in cells for name in cell["scores"]))
    time = spread([cell["reached_seconds"] for cell in cells])
    rated = [cell["wer"].get("wer") for cell in cells if cell["wer"] is not None]
    rates = [float(rate) for rate in rated if isinstance(rate, int | float)]
    return {
        **variant_of(cells[0]),
        "regime": next((cell["regime"] for cell in cells if cell["regime"]), ""),
        "seeds": [cell["seed"] for cell in cells],
        "cells": [cell["name"] for cell in cells],
        "statuses": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        "hits": sum(value is not None for value in time["values"]),
        "rank": None,
        "time": time,
        "frames": spread([cell["reached_frames"] for cell in cells]),
        "score": spread([cell["scores"].get(score) for cell in cells]),
        "scores": {name: spread([cell["scores"].get(name) for cell in cells]) for name in names},
        "seconds": spread([cell["seconds"] for cell in cells]),
        "frames_per_second": _rates([cell["frames_per_second"] for cell in cells]),
        "speedup": None,
        "efficiency": None,
        "throughput_speedup": None,
        "throughput_efficiency": None,
        "wer": spread(rates) if rates else None,
    }


def _rates(values: list[float | None]) -> Spread:
    """Return the spread of values of which more is better, without those of failed runs."""
    known = spread([value for value in values if value is not None])
    return known | {"values": values}


def speed_up(row: StrategyRow, one: StrategyRow) -> None:
    """Set a row's speed-up over one learner."""
    learners = max(row["learners"], 1)
    if row["time"]["median"] and one["time"]["median"]:
        row["speedup"] = speedup = one["time"]["median"] / row["time"]["median"]
        row["efficiency"] = speedup / learners
    fast, slow = row["frames_per_second"]["median"], one["frames_per_second"]["median"]
    if fast and slow:
        row["throughput_speedup"] = fast / slow
        row["throughput_efficiency"] = fast / slow / learners


def _where(row: StrategyRow) -> tuple[str, str, str]:
    return row["on"], row["cluster"], row["model"]


def make_groups(rows: list[StrategyRow]) -> list[RowGroup]:
    """Group rows with equal conditions; ranks and answers are set later."""
    groups: dict[tuple[Any, ...], RowGroup] = {}
    for row in rows:
        key: Key = {
            "on": row["on"],
            "clock": row["clock"],
            "cluster": row["cluster"],
            "model": row["model"],
            "learners": row["learners"],
        }
        group: RowGroup = {"key": key, "baseline": "", "baseline_time": None, "rows": [], "answer": no_answer("")}
        groups.setdefault(tuple(key.values()), group)["rows"].append(row)
    return list(groups.values())


def _rank(rows: list[StrategyRow]) -> None:
    """Sort by median time to the target, then misses by score; rows with too few blocks are last."""

    def order(row: StrategyRow) -> tuple[bool, float, float]:
        return bool(row["regime"]), number_or_inf(row["time"]["median"]), number_or_inf(row["score"]["median"])

    rows.sort(key=order)
    ranked = [row for row in rows if not row["regime"] and row["time"]["median"] is not None]
    for row in ranked:  # equal times share a rank
        row["rank"] = 1 + sum(better(other["time"]["median"], row["time"]["median"]) for other in ranked)


def _trials(cells: list[CellResult], target: Target, last: int, used: Mapping[Like, float | None]) -> Trials:
    cells = sorted(cells, key=lambda cell: cell["rate"] or 0.0)
    first, name = cells[0], target["score"]
    scores = [settled(cell["curve"], name, last) if cell["status"] == "done" else None for cell in cells]
    rates = [cell["rate"] or 0.0 for cell in cells]
    chosen = used.get(_like(first)) or choose_rate(dict(zip(rates, scores, strict=True)))
    return {
        "strategy": first["strategy"],
        "on": first["on"],
        "cluster": first["cluster"],
        "model": first["model"],
        "learners": first["learners"],
        "rates": rates,
        "scores": scores,
        "statuses": [cell["status"] for cell in cells],
        "cells": [cell["name"] for cell in cells],
        "chosen": chosen,
        "at_edge": len(rates) > 2 and chosen in (rates[0], rates[-1]),
    }


def _profiles(groups: list[RowGroup], clock: str) -> list[Profile]:
    """Return the share of groups of several learners in which a strategy is within each factor of the best."""
    several = [group for group in groups if group["key"]["clock"] == clock and group["key"]["learners"] > 1]
    ratios: dict[str, list[float]] = {}
    for group in several:
        ranked = [row for row in group["rows"] if row["rank"] is not None]
        best = ranked[0]["time"]["median"] if ranked else None
        for row in group["rows"]:
            time = row["time"]["median"]
            hit = row["rank"] is not None and time is not None and best
            ratios.setdefault(row["strategy"], []).append(time / best if hit and best and time else math.inf)
    profiles: list[Profile] = []
    for strategy, theirs in ratios.items():
        shares = [sum(ratio <= factor + 1e-9 for ratio in theirs) / len(several) for factor in FACTORS]
        area = sum(max(0.0, 1 - math.log(ratio) / math.log(FACTORS[-1])) for ratio in theirs) / len(several)
        profiles.append(
            {"strategy": strategy, "clock": clock, "factors": FACTORS, "shares": shares, "area": round(area, 4)}
        )
    return sorted(profiles, key=lambda profile: -profile["area"])


def _notes(about: dict[str, Any], cells: list[CellResult]) -> list[str]:
    tuning, target = about.get("tuning", {}), about["target"]
    notes = [
        f"Every run trains {about['budget']['frames']:,.0f} frames, for any number of learners.",
        f"The target, {target['score']} at most {target['value']:g} on dev, was fixed before any run; its time is "
        "the time of the first evaluation that reaches it, and a run that never reaches it counts as a miss.",
        "Numbers are medians over seeds with their range; if half of the seeds or more missed, there is no median.",
        f"The baseline is one learner ({about['baseline']}), without stragglers and lost learners.",
    ]
    if tuning.get("rates"):
        last = tuning.get("evaluations", 1)
        by = f" in the mean of its last {last} evaluations (never more than half of them)" if last > 1 else ""
        notes.append(
            f"Each strategy had {len(tuning['rates'])} trials for each number of learners, of "
            f"{100 * tuning.get('budget_fraction', 1.0):g} % of the budget, with a separate seed; the rate with the "
            f"best {target['score']} on dev{by} was taken."
        )
    if any(cell["regime"] for cell in cells):
        notes.append(f"Cells with fewer than {about.get('blocks', 20)} x N blocks are shown, not ranked.")
    if any(cell["clock"] == "wall" for cell in cells) and any(cell["clock"] == "virtual" for cell in cells):
        notes.append("Wall time and virtual time are never compared with each other.")
    return notes
