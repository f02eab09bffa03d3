"""Plan for a described cluster: rank strategies, and change each assumption to see how much depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay import config
from roundelay.errors import SettingsError
from roundelay.planning.assumptions import assumptions_of
from roundelay.planning.cluster_profiles import find_cluster
from roundelay.planning.frames_to_target import Needed, parse_target, read_convergence
from roundelay.planning.ranking import PAPERS, Effect, Ranking, make_plan, sensitivity
from roundelay.runs.target import Target
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies import STRATEGIES
from roundelay.strategy import Strategy

MOST = 10_000  # learners
Progress = Callable[[str, int], None]
"""Called after each simulation, with what was simulated and the number of all simulations."""


@dataclass(frozen=True)
class ClusterPlan:
    """The speed of strategies on a cluster."""

    rankings: tuple[Ranking, ...]
    """One for each number of learners."""
    effects: tuple[Effect, ...] = ()
    """Effects of changed assumptions on the last ranking."""
    target: Target | None = None
    needed: dict[str, Needed] | None = None
    """By strategy: the frames that the target takes, if a record shows it."""


def plan(
    cluster: Cluster | Path | str,
    *,
    learners: Sequence[int] = (),
    strategies: Sequence[str] = PAPERS,
    settings: Mapping[str, Any] | None = None,
    record: Path | None = None,
    target: str | None = None,
    factors: Sequence[float] = (),
    progress: Progress = lambda *_: None,
) -> ClusterPlan:
    """Rank strategies on a cluster, a TOML file or a profile's name, by their simulated speed.

    ``settings`` change hyperparameters, as ``{"bmuf.block": 100}``; ``record`` is a run or a study that shows how many
    frames ``target`` (``loss=1.2``) takes; each assumption is multiplied by each of ``factors``.
    """
    described = cluster if isinstance(cluster, Cluster) else find_cluster(str(cluster))
    sizes = tuple(learners) or (num_learners(described),)
    for size in sizes:
        if not 1 <= size <= MOST:
            raise SettingsError(f"--learners must be from 1 to {MOST}, not {size}")
    if target is not None and record is None:
        raise SettingsError("--target needs --record: only a recorded run says how many frames a target takes")
    chosen, aim, needed = _choose(strategies, settings or {}), parse_target(target) if target else None, None
    if record is not None:
        aim, needed = read_convergence(record, aim)
        needed |= {name: needed[full] for name in chosen if (full := config.resolve(name, Path())) in needed}
    total = len(chosen) * (len(sizes) + len(factors) * len(assumptions_of(described)))

    def tell(what: str) -> None:
        progress(what, total)

    rankings = tuple(make_plan(described, chosen, size, needed=needed, progress=tell) for size in sizes)
    effects: Sequence[Effect] = ()
    if factors and rankings[-1].rows:
        effects = sensitivity(rankings[-1], chosen, factors=factors, needed=needed, progress=tell)
    return ClusterPlan(rankings, tuple(effects), aim, needed)


def num_learners(cluster: Cluster) -> int:
    """Return how many learners a cluster has room for."""
    per_node = cluster.learners_per_node
    return sum(per_node) if isinstance(per_node, list) else cluster.nodes * (per_node or 1)


def _choose(names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Strategy]:
    """Return strategies by name, with hyperparameters changed."""
    table: dict[str, dict[str, Any]] = {name: {"name": config.resolve(name, Path())} for name in names}
    for key, value in settings.items():
        name = key.partition(".")[0]
        if name not in table:
            raise SettingsError(f"--set {key}: {name!r} is not planned; there are {', '.join(table)}")
        config.put(table, key, value)
    for each in table.values():
        STRATEGIES.find(each["name"], "strategy")
    return {name: config.build_named(STRATEGIES, each, name) for name, each in table.items()}
