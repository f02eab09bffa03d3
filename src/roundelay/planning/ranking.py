"""Rank strategies on a described cluster by simulated speed, and find how much the ranking depends on assumptions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundelay.errors import SettingsError
from roundelay.planning.assumptions import assumptions_of
from roundelay.planning.frames_to_target import Needed
from roundelay.planning.timing import Timing, time_strategy
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy

PAPERS = (
    "synchronous",
    "averaging",
    "bmuf",
    "asgd",
    "easgd",
    "adpsgd",
    "adpsgd-random",
    "delay-by-one",
    "hierarchical",
)
"""The nine strategies of the papers."""
BASELINE_STEPS = 400
Progress = Callable[[str], None]


@dataclass(frozen=True)
class RankedStrategy:
    """The simulated speed of one strategy."""

    strategy: str
    timing: Timing
    speedup: float
    """Over one learner."""
    target_seconds: float | None = None
    """Predicted time to the target, if a record shows how many frames it takes."""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"strategy": self.strategy, **dataclasses.asdict(self.timing)} | {
            "speedup": self.speedup,
            "efficiency": self.speedup / self.timing.learners,
            "idle": self.timing.idle,
            "target_seconds": self.target_seconds,
        }


@dataclass(frozen=True)
class Effect:
    """How the plan changes if one assumption is multiplied by each of several factors."""

    assumption: str
    value: str
    throughput: dict[float, dict[str, float]]
    """By factor and strategy: throughput, as a share of the planned one."""
    orders: dict[float, list[str]]
    """By factor: the ranking."""


@dataclass(frozen=True)
class Ranking:
    """Strategies for one number of learners, the best first."""

    cluster: Cluster
    learners: int
    rows: list[RankedStrategy]
    by: str
    """What they are ranked by: ``time to target`` or ``frames per second``."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Strategies that cannot run on this cluster, with the reason."""

    @property
    def order(self) -> list[str]:
        """Return the strategies' names, the best first."""
        return [row.strategy for row in self.rows]


def make_plan(
    cluster: Cluster,
    strategies: Mapping[str, Strategy],
    learners: int,
    *,
    needed: Mapping[str, Needed] | None = None,
    progress: Progress = lambda _: None,
) -> Ranking:
    """Time each of ``strategies`` on ``learners`` learners, and rank them."""
    alone = time_strategy(Synchronous(), cluster_of_one(cluster), 1, steps=BASELINE_STEPS).frames_per_second
    rows, skipped = [], {}
    for name, strategy in strategies.items():
        progress(name)
        try:
            timing = time_strategy(strategy, cluster, learners)
        except SettingsError as error:
            skipped[name] = str(error)
            continue
        rows.append(
            RankedStrategy(name, timing, timing.frames_per_second / alone, _to_target(timing, (needed or {}).get(name)))
        )
    return Ranking(cluster, learners, _ranked(rows), "time to target" if needed else "frames per second", skipped)


def cluster_of_one(cluster: Cluster) -> Cluster:
    """Return the cluster with one learner, and without stragglers."""
    compute = dataclasses.replace(cluster.compute, slowness=[])
    return dataclasses.replace(cluster, nodes=1, learners_per_node=1, compute=compute, stragglers=[])


def _to_target(timing: Timing, needed: Needed | None) -> float | None:
    if needed is None or needed.frames is None:
        return None
    return needed.frames / timing.frames_per_second


def _ranked(rows: Sequence[RankedStrategy]) -> list[RankedStrategy]:
    """Sort by time to target, then strategies without one by throughput."""

    def place(row: RankedStrategy) -> tuple[float, float]:
        return math.inf if row.target_seconds is None else row.target_seconds, -row.timing.frames_per_second

    return sorted(rows, key=place)


def sensitivity(
    plan: Ranking,
    strategies: Mapping[str, Strategy],
    *,
    factors: Sequence[float] = (0.5, 2.0),
    needed: Mapping[str, Needed] | None = None,
    progress: Progress = lambda _: None,
) -> list[Effect]:
    """Make the plan again with each assumption changed by each of ``factors``."""
    planned = {row.strategy: row.timing.frames_per_second for row in plan.rows}
    chosen = {name: strategies[name] for name in planned}
    effects = []
    for assumption in assumptions_of(plan.cluster):
        throughput, orders = {}, {}
        for factor in factors:
            changed, what = assumption.change(plan.cluster, factor), f"{assumption.name} x {factor:g}"

            def tell(name: str, what: str = what) -> None:
                progress(f"{what}: {name}")

            other = make_plan(changed, chosen, plan.learners, needed=needed, progress=tell)
            found = {row.strategy: row.timing.frames_per_second for row in other.rows}
            throughput[factor] = {name: found[name] / planned[name] for name in planned if name in found}
            orders[factor] = other.order
        effects.append(Effect(assumption.name, assumption.describe(plan.cluster), throughput, orders))
    return effects


def moved(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the strategies that change rank, and by how much."""
    shifts = {name: before.index(name) - after.index(name) for name in before if name in after}
    changed = sorted((name for name, shift in shifts.items() if shift), key=lambda name: -abs(shifts[name]))
    return [f"{name} {'up' if shifts[name] > 0 else 'down'} {abs(shifts[name])}" for name in changed]
