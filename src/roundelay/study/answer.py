"""The short answer in sentences: the fastest strategy, by how much, how certain, and what can change it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundelay.runs.target import Target, first_reached
from roundelay.study.schema import Answer, CellResult, RowGroup, StrategyRow, Trials, no_answer
from roundelay.study.statistics import FEWEST, better, chance, compare_times, number_or_inf, spread

ABOUT_EQUAL = 1.03  # times; a smaller difference is within the effect of seeds
LEVELS = 40  # targets that are tried to find one with another winner


def say_score(name: str, value: float) -> str:
    """Write a score, an error in percent."""
    return f"{100 * value:.1f} %" if name == "error" else f"{value:.3g}"


def answer_group(
    group: RowGroup,
    groups: Sequence[RowGroup],
    target: Target,
    *,
    trials: Sequence[Trials],
    cells: Sequence[CellResult],
) -> Answer:
    """Answer for one set of conditions."""
    ranked = [row for row in group["rows"] if row["rank"] is not None]
    if not ranked:
        return _without_winner(group, target)
    first, second = ranked[0], ranked[1] if len(ranked) > 1 else None
    ratio = _ratio(first, second)
    sentences = _certainty(first, second) + _behind(ranked) + _left_out(group, target)
    changes = [
        *_other_conditions(group, groups, first),
        *_other_targets(group, target, cells, first),
        *_other_measures(group, target, first),
        *_short_periods(group),
        *_edges(group, trials),
    ]
    return {
        "headline": _headline(group, target, first, second),
        "sentences": sentences,
        "changes": changes,
        "certainty": compare_times(first["time"], second["time"]) if second is not None else "none",
        "winner": first["strategy"],
        "runner_up": second["strategy"] if second is not None else None,
        "ratio": ratio,
    }


def answer_study(groups: Sequence[RowGroup], target: Target, *, missing: int, budget: float) -> Answer:
    """Answer for the whole study: the group with the most learners, and one sentence per other kind of group."""
    if not groups:
        return no_answer("No cell has been computed yet.")
    most = max(groups, key=lambda group: (group["key"]["on"] == "simulator", group["key"]["learners"]))
    whole = most["answer"].copy()
    others = []
    seen = {_place(most)}
    for group in sorted(groups, key=lambda group: -group["key"]["learners"]):
        if _place(group) not in seen:
            seen.add(_place(group))
            sure = group["answer"]["certainty"]
            others.append(group["answer"]["headline"] + (f" That is {sure}." if sure != "none" else ""))
    whole["sentences"] = [*whole["sentences"], *others]
    if missing:
        whole["sentences"] = [
            f"{missing} {'cell has' if missing == 1 else 'cells have'} not been computed yet: this answer may change.",
            *whole["sentences"],
        ]
    whole["changes"] = [*whole["changes"], f"A budget other than {budget:,.0f} frames may change the ranking."]
    return whole


def _place(group: RowGroup) -> tuple[str, str, str]:
    return group["key"]["on"], group["key"]["cluster"], group["key"]["model"]


def _conditions(group: RowGroup) -> str:
    key = group["key"]
    count = "one learner" if key["learners"] == 1 else f"{key['learners']} learners"
    words = [f"{count} on processes" if key["on"] == "processes" else f"{count} in the simulator"]
    if key["cluster"] and key["on"] == "simulator":
        words.append(f"cluster {key['cluster']}")
    if key["model"]:
        words.append(f"model {key['model']}")
    return ", ".join(words)


def _first_word(text: str) -> str:
    """Capitalise the first letter only; names keep their letters."""
    return text[:1].upper() + text[1:]


def _goal(target: Target) -> str:
    return f"{target['score']} {say_score(target['score'], target['value'])}"


def _seconds(row: StrategyRow) -> str:
    return f"{row['time']['median']:.3g} s of {row['clock']} time"


def _ratio(first: StrategyRow, second: StrategyRow | None) -> float | None:
    if second is None or not first["time"]["median"] or second["time"]["median"] is None:
        return None
    return second["time"]["median"] / first["time"]["median"]


def _headline(group: RowGroup, target: Target, first: StrategyRow, second: StrategyRow | None) -> str:
    ratio, where = _ratio(first, second), _first_word(_conditions(group))
    said = f"{where}: {first['strategy']} reaches {_goal(target)} first, in {_seconds(first)}"
    if second is not None and ratio is not None and ratio < ABOUT_EQUAL:
        pair = f"{first['strategy']} and {second['strategy']}"
        said = f"{where}: {pair} are about equally fast, first to {_goal(target)} in {_seconds(first)}"
    elif second is not None and ratio is not None:
        said += f", {ratio:.2f} times as fast as the next, {second['strategy']}"
    if first["speedup"] is not None and first["learners"] > 1:
        said += f", and {first['speedup']:.3g} times as fast as one learner"
    return said + "."


def _without_winner(group: RowGroup, target: Target) -> Answer:
    best = min(group["rows"], key=lambda row: number_or_inf(row["score"]["median"]))
    said = f"{_first_word(_conditions(group))}: no ranked strategy reached {_goal(target)} in most of its seeds"
    score = best["score"]["median"]
    near = f"; the nearest is {best['strategy']} with {say_score(target['score'], score)}" if score is not None else ""
    changes = ["Use a longer budget or an easier target to get an answer."]
    return no_answer(f"{said}{near}.", _left_out(group, target), changes)


def _certainty(first: StrategyRow, second: StrategyRow | None) -> list[str]:
    if second is None:
        return ["No other ranked strategy reached the target, so there is no runner-up."]
    seeds = len(first["seeds"])
    sure = compare_times(first["time"], second["time"])
    wins = sum(better(a, b) for a, b in zip(first["time"]["values"], second["time"]["values"], strict=False))
    luck = chance(first["time"]["values"], second["time"]["values"])
    odds = f"; for two equal strategies the probability of this result is {luck:.2g}" if luck and seeds > 1 else ""
    if sure == "clear":
        return [f"That is clear: over {seeds} seeds the ranges of the two do not overlap{odds}."]
    if sure == "likely":
        but = "the ranges of the two overlap" if seeds >= FEWEST else f"there are only {seeds} seeds"
        return [f"That is likely: it is faster in {wins} of {seeds} seeds, though {but}{odds}."]
    if seeds < 2:
        return ["With a single seed this may be chance."]
    return [f"Which of the two is faster is open: {first['strategy']} is in {wins} of {seeds} seeds{odds}."]


def _behind(ranked: Sequence[StrategyRow]) -> list[str]:
    """Return how much longer the strategies after the first two take."""
    ratios = [(row["strategy"], _ratio(ranked[0], row)) for row in ranked[2:]]
    said = [f"{name} {ratio:.3g}" for name, ratio in ratios if ratio is not None]
    return [f"The others take: {', '.join(said)} times as long as {ranked[0]['strategy']}."] if said else []


def _left_out(group: RowGroup, target: Target) -> list[str]:
    sentences = []
    outside = [row["strategy"] for row in group["rows"] if row["regime"]]
    if outside:
        sentences.append(f"Too few blocks for the regime of the paper, not ranked: {', '.join(outside)}.")
    missed = [row for row in group["rows"] if not row["regime"] and row["rank"] is None]
    if missed:
        said = [f"{row['strategy']} ({row['hits']} of {len(row['seeds'])} seeds)" for row in missed]
        sentences.append(f"Missed {_goal(target)}: {', '.join(said)}.")
    bad = {
        row["strategy"]: row["statuses"].get("diverged", 0) + row["statuses"].get("failed", 0) for row in group["rows"]
    }
    if any(bad.values()):
        said = [f"{name} ({count})" for name, count in bad.items() if count]
        sentences.append(f"Runs that diverged or failed: {', '.join(said)}.")
    return sentences


def _other_conditions(group: RowGroup, groups: Sequence[RowGroup], first: StrategyRow) -> list[str]:
    """Return the conditions under which another strategy is first."""
    changes = []
    for other in groups:
        winner = next((row for row in other["rows"] if row["rank"] == 1), None)
        same_clock = other["key"]["clock"] == group["key"]["clock"]
        if other is group or winner is None or not same_clock or other["key"]["learners"] == 1:
            continue
        if winner["strategy"] != first["strategy"]:
            changes.append(f"With {_conditions(other)} {winner['strategy']} is first ({_seconds(winner)}).")
    return changes


def _other_targets(group: RowGroup, target: Target, cells: Sequence[CellResult], first: StrategyRow) -> list[str]:
    """Return the nearest harder and easier target with which another strategy is first."""
    name = target["score"]
    curves = {
        row["strategy"]: [cell for cell in cells if cell["name"] in set(row["cells"]) and cell["status"] == "done"]
        for row in group["rows"]
        if not row["regime"]
    }
    points = [point for alike in curves.values() for cell in alike for point in cell["curve"]]
    seen = [point["scores"][name] for point in points if name in point["scores"]]
    if not seen:
        return []
    changes = []
    for side, end in (("a harder", min(seen)), ("an easier", max(seen))):
        for k in range(1, LEVELS + 1):
            value = target["value"] + (end - target["value"]) * k / LEVELS
            winner = _winner_at(curves, name, value)
            if (side == "a harder") != (value < target["value"]) or winner is None or winner == first["strategy"]:
                continue
            changes.append(f"With {side} target, {name} {say_score(name, value)}, {winner} is first.")
            break
    return changes


def _winner_at(curves: dict[str, list[CellResult]], name: str, value: float) -> str | None:
    times = {
        strategy: spread([_reached(cell, name, value) for cell in alike])["median"]
        for strategy, alike in curves.items()
    }
    known = {strategy: time for strategy, time in times.items() if time is not None}
    return min(known, key=lambda strategy: known[strategy]) if known else None


def _reached(cell: CellResult, name: str, value: float) -> float | None:
    reached = first_reached(cell["curve"], Target(score=name, value=value))
    return reached["seconds"] if reached is not None else None


def _other_measures(group: RowGroup, target: Target, first: StrategyRow) -> list[str]:
    """Return the first strategy by other measures than time."""
    name, changes = target["score"], []
    inside = [row for row in group["rows"] if not row["regime"]]
    best = min(inside, key=lambda row: number_or_inf(row["score"]["median"]))
    ours, theirs = first["score"]["median"], best["score"]["median"]
    if best is not first and theirs is not None and ours is not None and theirs < ours:
        changes.append(
            f"By the {name} at the end of the budget {best['strategy']} is first "
            f"({say_score(name, theirs)} against {say_score(name, ours)})."
        )
    least = min(inside, key=lambda row: number_or_inf(row["frames"]["median"]))
    few, ours = least["frames"]["median"], first["frames"]["median"]
    if least is not first and few is not None and ours is not None and few < ours:
        changes.append(
            f"If communication and waiting cost nothing, {least['strategy']} is first: it needs "
            f"{few:,.0f} frames, {first['strategy']} {ours:,.0f}."
        )
    lowest = min(inside, key=_wer)
    if _wer(lowest) < _wer(first) < math.inf:
        said = f"{_wer(lowest):.1f} % against {_wer(first):.1f} %"
        changes.append(f"By word error rate {lowest['strategy']} is first ({said}).")
    return changes


def _wer(row: StrategyRow) -> float:
    return math.inf if row["wer"] is None else number_or_inf(row["wer"]["median"])


def _short_periods(group: RowGroup) -> list[str]:
    return [
        f"{row['strategy']} communicated every {_steps(row['period'])} to have enough blocks; usual is every "
        f"{_steps(row['usual_period'])}: with a longer budget it communicates less."
        for row in group["rows"]
        if row["period"] and row["usual_period"] and not row["regime"] and row["period"] < row["usual_period"]
    ]


def _steps(period: int) -> str:
    return "step" if period == 1 else f"{period} steps"


def _edges(group: RowGroup, trials: Sequence[Trials]) -> list[str]:
    key = group["key"]
    at_edge = [
        trial["strategy"]
        for trial in trials
        if trial["at_edge"]
        and (trial["on"], trial["cluster"], trial["model"], trial["learners"])
        == (key["on"], key["cluster"], key["model"], key["learners"])
    ]
    if not at_edge:
        return []
    return [f"The best rate is at the edge of the grid for {', '.join(at_edge)}: more trials may help."]
