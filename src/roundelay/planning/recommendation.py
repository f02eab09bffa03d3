"""One strategy for a cluster and a task: fast there by simulation, and close to one learner's error in our studies."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay.errors import SettingsError
from roundelay.optim.default_rules import RuleChoice, RuleConditions, choose, is_adaptive
from roundelay.planning.cluster_plan import num_learners, plan
from roundelay.planning.cluster_profiles import find_cluster
from roundelay.planning.ranking import PAPERS, RankedStrategy
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies import STRATEGIES
from roundelay.strategy import Strategy

FRAMES_PER_HOUR = 360_000
FAST_ENOUGH = 0.9
"""The share of the best speed that a strategy must have; among these the measured error decides."""
STUDIED = 16
"""Learners in the studies of `MEASURED`."""
MEASURED: dict[str, dict[str, float]] = {
    "synchronous": {"DNN": 0.98, "small DNN": 0.99, "LSTM": 1.09},
    "asgd": {"small DNN": 1.01},
    "adpsgd-random": {"DNN": 1.02, "small DNN": 1.04, "LSTM": 1.11},
    "averaging": {"DNN": 1.03, "small DNN": 1.07, "LSTM": 1.11},
    "adpsgd": {"DNN": 1.03, "small DNN": 1.07},
    "bmuf": {"DNN": 1.04, "small DNN": 1.06, "LSTM": 1.15},
    "easgd": {"small DNN": 1.05},
}
"""Frame error on dev with 16 learners / with one, each by its default rule or the settings next to it: docs/results.md.

One seed each.  delay-by-one and hierarchical have a word error rate in the interval of one learner's, but no frame
error was kept.
"""
COMPARED = ("DNN", "small DNN")
"""The models by whose mean strategies are compared; what was not measured on both comes after what was."""


@dataclass(frozen=True)
class Recommendation:
    """One strategy, and why."""

    strategy: str
    learners: int
    steps: int
    """Of each learner in the budget."""
    choice: RuleChoice
    """What its default rule sets."""
    command: str
    reasons: tuple[str, ...]
    rows: tuple[RankedStrategy, ...]
    """All strategies, the fastest first."""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        rule = {name: value for name, value in dataclasses.asdict(self.choice).items() if name != "line"}
        said = {"strategy": self.strategy, "learners": self.learners, "steps": self.steps, "command": self.command}
        speeds = [
            {"strategy": row.strategy, "speedup": row.speedup, "measured": MEASURED.get(row.strategy, {})}
            for row in self.rows
        ]
        return said | {"rule": rule, "reasons": list(self.reasons), "strategies": speeds}


def recommend(
    cluster: Cluster | Path | str,
    *,
    hours: float,
    learners: int | None = None,
    epochs: float = 10.0,
    minibatch: int | None = None,
    optimizer: str = "AdamW",
) -> Recommendation:
    """Recommend a strategy for a cluster (a TOML file or a profile's name) and ``hours`` of speech in an epoch.

    ``minibatch`` is in frames of one learner; by default that of the cluster's description.
    """
    described = cluster if isinstance(cluster, Cluster) else find_cluster(str(cluster))
    size = learners if learners is not None else num_learners(described)
    frames = minibatch or described.frames
    steps = int(hours * FRAMES_PER_HOUR * epochs / (frames * size)) if size > 0 else 0
    if steps < 1:
        raise SettingsError(
            f"recommend: {hours:g} hours and {epochs:g} epochs are less than one minibatch of {frames} frames for each "
            f"of {size} learners; use fewer learners"
        )
    conditions = RuleConditions(size, steps, is_adaptive(optimizer))
    choices = {name: choose(_strategy(name, described), {}, conditions) for name in PAPERS}
    settings = {f"{name}.{key}": value for name, each in choices.items() for key, value in each.settings.items()}
    if (per_node := _per_node(described)) is not None:
        settings["hierarchical.learners_per_node"] = per_node
    (ranking,) = plan(described, learners=[size], settings=settings).rankings
    if not ranking.rows:
        raise SettingsError(f"recommend: no strategy can run with {size} learners on {described.name}")
    best = _best(ranking.rows)
    return Recommendation(
        best.strategy, size, steps, choices[best.strategy], _command(best.strategy, size, per_node),
        tuple(_reasons(best, ranking.rows, described, steps)), tuple(ranking.rows),
    )  # fmt: skip


def _strategy(name: str, cluster: Cluster) -> Strategy:
    per_node = _per_node(cluster)
    given = {"learners_per_node": per_node} if name == "hierarchical" and per_node is not None else {}
    return STRATEGIES[name](**given)


def _per_node(cluster: Cluster) -> int | None:
    """Return the learners of a node, where a cluster has nodes of several."""
    given = cluster.learners_per_node
    return given if isinstance(given, int) and given > 1 and cluster.nodes > 1 else None


def _best(rows: list[RankedStrategy]) -> RankedStrategy:
    """Return the one with the lowest measured error of those that are fast enough; of equal ones, the fastest."""

    def order(row: RankedStrategy) -> tuple[int, float, float]:
        found = MEASURED.get(row.strategy, {})
        known = [found[model] for model in COMPARED if model in found]
        return len(COMPARED) - len(known), round(sum(known) / max(1, len(known)), 2), -row.speedup

    return min((row for row in rows if row.speedup >= FAST_ENOUGH * max(each.speedup for each in rows)), key=order)


def _command(strategy: str, learners: int, per_node: int | None) -> str:
    nodes = f" --learners-per-node {per_node}" if strategy == "hierarchical" and per_node is not None else ""
    return f"roundelay train EXPERIMENT --out RUN --learners {learners} --strategy {strategy}{nodes}"


def _reasons(best: RankedStrategy, rows: list[RankedStrategy], cluster: Cluster, steps: int) -> list[str]:
    timing, fastest = best.timing, max(rows, key=lambda row: row.speedup)
    said = [
        f"Speed: on {cluster.name} it trains {timing.frames_per_second:,.0f} frames/s, {best.speedup:.1f} times one "
        f"learner (simulated); the bottleneck is {timing.bottleneck}."
    ]
    if fastest is not best:
        said.append(
            f"{fastest.strategy} is the fastest ({fastest.speedup:.1f} times); {best.strategy} has at least "
            f"{FAST_ENOUGH:.0%} of that, and its error was lower or measured on more models."
        )
    said.append(f"Error: {_measured(best.strategy)}")
    slow = [row.strategy for row in rows if row.speedup < FAST_ENOUGH * fastest.speedup]
    if slow:
        said.append(f"Slower here: {', '.join(slow)}.")
    said.append(
        f"Limits: the error was measured with {STUDIED} learners on a small task, with one seed; here each learner "
        f"takes {steps:,} steps. Try it on your task: roundelay compare."
    )
    return said


def _measured(strategy: str) -> str:
    found = MEASURED.get(strategy)
    if found is None:
        return f"the frame error of {strategy} was not measured against one learner's."
    figures = ", ".join(f"{ratio:.2f} ({model})" for model, ratio in found.items())
    return f"with {STUDIED} learners its frame error on AN4, divided by one learner's, was {figures}."
