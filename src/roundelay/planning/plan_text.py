"""A plan in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from roundelay.planning.assumptions import say_seconds
from roundelay.planning.ranking import Effect, Ranking, moved

CLOSE = 0.03  # strategies within this share of each other are about equally fast


def answer(plan: Ranking) -> list[str]:
    """Return sentences: the fastest strategy, by how much, and its bottleneck."""
    if not plan.rows:
        return ["No strategy can run on this cluster."]
    best, rest = plan.rows[0], plan.rows[1:]
    timing = best.timing
    rate = f"{timing.frames_per_second:,.0f} frames/s, {best.speedup:.1f} times one learner"
    if best.target_seconds is not None:
        said = f"{best.strategy} reaches the target first, in {say_seconds(best.target_seconds)} ({rate})."
    else:
        said = f"{best.strategy} is fastest: {rate}."
    if rest:
        gaps = [(row.strategy, _gap(plan, row.strategy)) for row in rest]
        near = [name for name, gap in gaps if gap is not None and gap < 1 + CLOSE]
        second, gap = gaps[0]
        if near:
            said += f" {_list(near)} {'is' if len(near) == 1 else 'are'} about as fast."
        elif gap is not None:
            said += f" Next is {second}, {gap:.2f} times slower."
    return [said, f"Bottleneck: {timing.bottleneck}, busy {timing.busy[timing.bottleneck]:.0%} of the time."]


def _gap(plan: Ranking, strategy: str) -> float | None:
    best = plan.rows[0]
    row = next(row for row in plan.rows if row.strategy == strategy)
    if best.target_seconds is not None:
        return row.target_seconds / best.target_seconds if row.target_seconds is not None else None
    return best.timing.frames_per_second / row.timing.frames_per_second


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def say_factor(factor: float) -> str:
    """Write the factor of a change: ``x 2`` or ``/ 2``."""
    return f"x {factor:g}" if factor > 1 else f"/ {1 / factor:g}"


def say_effect(effect: Effect, order: Sequence[str]) -> str:
    """Return how the ranking changes with one assumption."""
    said = []
    for factor, after in effect.orders.items():
        how = say_factor(factor)
        if after and after[0] != order[0]:
            said.append(f"{how}: {after[0]} first")
        elif changed := moved(order, after):
            said.append(f"{how}: {', '.join(changed[:3])}{', …' if len(changed) > 3 else ''}")
    return "; ".join(said) or "nothing"
