"""How long a strategy's steps take on a cluster, by running the strategy's own file in the simulator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from roundelay.planning.bottleneck import bottlenecks
from roundelay.planning.placeholders import TotalsRecord
from roundelay.runs.record import KINDS
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import time_only
from roundelay.strategies.hierarchical import Hierarchical
from roundelay.strategy import Strategy, period_setting

__all__ = ["Timing", "fitted", "period_of", "time_strategy"]

FEWEST_STEPS, MOST_STEPS, SOME_STEPS = 4, 20, 800  # of a learner in the window that is measured, and of all learners


@dataclass(frozen=True)
class Timing:
    """A strategy's pace in its steady state, and what is busy meanwhile."""

    learners: int
    servers: int
    step_seconds: float
    """From step to step of one learner, on average."""
    frames_per_second: float
    """Of all learners together."""
    shares: dict[str, float]
    """Of learners' time, by kind: compute, communicate, wait, serve (beside the others)."""
    bytes_per_step: float
    """Sent for a step of one learner, by it, by servers and by those who answer."""
    busy: dict[str, float]
    """The share of time for which each thing that can hold up the others is in use, by its name."""
    bottleneck: str
    """Of these the busiest, or that nothing is."""

    @property
    def idle(self) -> float:
        """Return the share of learners' time in which they compute nothing."""
        return max(0.0, 1.0 - self.shares["compute"])

    def epoch_seconds(self, frames: float, fixed: float = 0.0) -> float:
        """Return how long ``frames`` frames take, with what an epoch costs besides."""
        return frames / self.frames_per_second + fixed


def period_of(strategy: Strategy, frames: int) -> int:
    """Return after how many steps what a learner does repeats."""
    inner = strategy.outer if isinstance(strategy, Hierarchical) else strategy
    setting = period_setting(type(inner))
    if setting is None:
        return 1
    in_frames = getattr(inner, f"{setting}_frames", None)
    steps: int = getattr(inner, setting) if in_frames is None else -(-in_frames // frames)
    return steps


def fitted(strategy: Strategy, cluster: Cluster, learners: int) -> Strategy:
    """Return ``strategy`` as it is used on this cluster: a hierarchical one goes by its nodes."""
    if isinstance(strategy, Hierarchical):
        return Hierarchical(outer=strategy.outer, learners_per_node=list(cluster.node_sizes(learners)))
    return strategy


def time_strategy(strategy: Strategy, cluster: Cluster, learners: int, *, seed: int = 0, steps: int = 0) -> Timing:
    """Simulate ``strategy`` for what it costs in time, leaving out its beginning and its end.

    The window that counts is ``steps`` steps of each learner, rounded up to whole periods of the strategy; by default 4
    to 20, the fewer the more learners there are.  As many come before it, and, where learners go at their own pace, as
    many after it.  Faults of the cluster are left out: a plan is for learners that live.
    """
    cluster = dataclasses.replace(cluster, faults=[], stops=[], partitions=[])
    strategy = fitted(strategy, cluster, learners)
    strategy.check(learners)
    period = period_of(strategy, cluster.frames)
    steps = steps or min(MOST_STEPS, max(FEWEST_STEPS, SOME_STEPS // learners))
    window = period * -(-steps // period)
    together = len(strategy.lockstep_groups(learners)) == 1
    tally = TotalsRecord(marks=(learners * window, 2 * learners * window))
    total = window * (2 if together else 3)
    time_only(strategy, cluster, learners=learners, steps=total, frames=cluster.frames, seed=seed, record=tally)
    return _measure(strategy, cluster, learners, window, tally)


def _measure(strategy: Strategy, cluster: Cluster, learners: int, window: int, tally: TotalsRecord) -> Timing:
    begin, end = tally.snapshots
    seconds = end.time - begin.time
    spent = {member: _difference(totals, begin.totals.get(member, {})) for member, totals in end.totals.items()}
    by_learner = [each for member, each in spent.items() if member.startswith("learner")]
    shares: dict[str, float] = {
        kind: sum(each.get(kind, 0.0) for each in by_learner) / (seconds * learners) for kind in KINDS[:4]
    }
    together = len(strategy.lockstep_groups(learners)) == 1
    busy = bottlenecks(spent, begin, end, servers=strategy.servers, together=together)
    busiest = max(busy, key=lambda name: busy[name])
    return Timing(
        learners=learners,
        servers=strategy.servers,
        step_seconds=seconds / window,
        frames_per_second=learners * window * cluster.frames / seconds,
        shares=shares,
        bytes_per_step=sum(each.get("bytes", 0.0) for each in spent.values()) / (learners * window),
        busy=busy,
        bottleneck=busiest,
    )


def _difference(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in now.items()}
