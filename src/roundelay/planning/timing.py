"""How long a strategy's steps take on a cluster: the strategy itself runs in the simulator, without a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from roundelay.planning.bottleneck import bottlenecks
from roundelay.planning.timing_simulation import TotalsRecord, time_only
from roundelay.runs.record import KINDS
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies.hierarchical import Hierarchical
from roundelay.strategy import Strategy, period_setting

FEWEST_STEPS, MOST_STEPS, TOTAL_STEPS = 4, 20, 800  # in the measured window: of each learner, and of all together


@dataclass(frozen=True)
class Timing:
    """A strategy's speed in its steady state, and which resources are busy."""

    learners: int
    servers: int
    step_seconds: float
    """Mean time between two steps of one learner."""
    frames_per_second: float
    """Of all learners together."""
    shares: dict[str, float]
    """Share of the learners' time, by kind: compute, communicate, wait, and serve, which overlaps the others."""
    bytes_per_step: float
    """Bytes sent per step of one learner, replies and servers' messages included."""
    busy: dict[str, float]
    """By name of a resource: the share of time in which it is in use."""
    bottleneck: str
    """The name of the busiest resource."""

    @property
    def idle(self) -> float:
        """Return the share of learners' time in which they compute nothing."""
        return max(0.0, 1.0 - self.shares["compute"])

    def epoch_seconds(self, frames: float, fixed: float = 0.0) -> float:
        """Return the seconds for ``frames`` frames, plus the ``fixed`` seconds of an epoch."""
        return frames / self.frames_per_second + fixed


def period_of(strategy: Strategy, frames: int) -> int:
    """Return after how many steps a learner's communication repeats."""
    inner = strategy.outer if isinstance(strategy, Hierarchical) else strategy
    setting = period_setting(type(inner))
    if setting is None:
        return 1
    in_frames = getattr(inner, f"{setting}_frames", None)
    steps: int = getattr(inner, setting) if in_frames is None else -(-in_frames // frames)
    return steps


def fitted(strategy: Strategy, cluster: Cluster, learners: int) -> Strategy:
    """Return ``strategy`` as used on this cluster: a hierarchical one gets its nodes."""
    if isinstance(strategy, Hierarchical):
        return Hierarchical(outer=strategy.outer, learners_per_node=list(cluster.node_sizes(learners)))
    return strategy


def time_strategy(strategy: Strategy, cluster: Cluster, learners: int, *, seed: int = 0, steps: int = 0) -> Timing:
    """Simulate ``strategy`` for its time only, without its start and its end.

    The measured window is ``steps`` steps of each learner, rounded up to whole periods of the strategy; by default 4
    to 20, the fewer the more learners there are.  As many steps come before it; if learners do not run in lockstep, as
    many come after it.  Faults of the cluster are ignored.
    """
    cluster = dataclasses.replace(cluster, faults=[], stops=[], partitions=[])
    strategy = fitted(strategy, cluster, learners)
    strategy.check(learners)
    period = period_of(strategy, cluster.frames)
    steps = steps or min(MOST_STEPS, max(FEWEST_STEPS, TOTAL_STEPS // learners))
    window = period * -(-steps // period)
    lockstep = len(strategy.lockstep_groups(learners)) == 1
    record = TotalsRecord(marks=(learners * window, 2 * learners * window))
    total = window * (2 if lockstep else 3)
    time_only(strategy, cluster, learners=learners, steps=total, frames=cluster.frames, seed=seed, record=record)
    return _measure(strategy, cluster, learners, window, record)


def _measure(strategy: Strategy, cluster: Cluster, learners: int, window: int, record: TotalsRecord) -> Timing:
    begin, end = record.snapshots
    seconds = end.time - begin.time
    spent = {
        member: {name: value - begin.totals.get(member, {}).get(name, 0.0) for name, value in totals.items()}
        for member, totals in end.totals.items()
    }
    by_learner = [each for member, each in spent.items() if member.startswith("learner")]
    shares: dict[str, float] = {
        kind: sum(each.get(kind, 0.0) for each in by_learner) / (seconds * learners) for kind in KINDS[:4]
    }
    lockstep = len(strategy.lockstep_groups(learners)) == 1
    busy = bottlenecks(spent, begin, end, servers=strategy.servers, together=lockstep)
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
