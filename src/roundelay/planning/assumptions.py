"""The assumptions of a plan: each number of a cluster by name, and how to change it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roundelay.runtimes.cluster import Cluster, NetworkLink

DEFAULT_MODEL_BYTES = 4e7


@dataclass(frozen=True)
class Assumption:
    """One number of a cluster's description."""

    name: str
    value: Callable[[Cluster], float | None]
    """Its value; ``None`` if it has no effect in this cluster."""
    say: Callable[[float], str]
    change: Callable[[Cluster, float], Cluster]
    """Return the cluster with the number this many times as large."""

    def describe(self, cluster: Cluster) -> str:
        """Write its value in this cluster; nothing if it has no effect there."""
        value = self.value(cluster)
        return "" if value is None else self.say(value)


def say_seconds(seconds: float) -> str:
    """Write a time in a suitable unit."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size * (2.0 if size > 1 else 1.0):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def say_bytes(count: float, per: str = "") -> str:
    """Write a number of bytes in a suitable unit."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}{per}"
    return f"{count:.3g} B{per}"


def _rate(value: float) -> str:
    return say_bytes(value, "/s")


def _several(cluster: Cluster) -> bool:
    return cluster.nodes > 1


def _crowded(cluster: Cluster) -> bool:
    """Return whether a node may have more than one learner."""
    per_node = cluster.learners_per_node
    return per_node is None or (per_node > 1 if isinstance(per_node, int) else max(per_node) > 1)


def _positive(value: float) -> float | None:
    return value if 0 < value < math.inf else None


def _compute(cluster: Cluster, factor: float, *names: str) -> Cluster:
    changes: dict[str, Any] = {name: getattr(cluster.compute, name) * factor for name in names}
    if "seconds" in names:
        changes["trace"] = [seconds * factor for seconds in cluster.compute.trace]
    return dataclasses.replace(cluster, compute=dataclasses.replace(cluster.compute, **changes))


def _link(cluster: Cluster, which: str, field: str, factor: float) -> Cluster:
    link: NetworkLink = getattr(cluster, which)
    changed: Any = {field: getattr(link, field) * factor}
    return dataclasses.replace(cluster, **{which: dataclasses.replace(link, **changed)})  # type: ignore[arg-type]  # a Link


def _gradient(cluster: Cluster) -> float:
    compute = cluster.compute
    if compute.trace:
        return sum(compute.trace) / len(compute.trace)
    return compute.seconds + compute.seconds_per_frame * cluster.frames


def _slowness(cluster: Cluster) -> float | None:
    slow = max([1.0, *cluster.compute.slowness, *(straggler.factor for straggler in cluster.stragglers)])
    return slow if slow > 1.0 else None


def _slower(cluster: Cluster, factor: float) -> Cluster:
    compute = cluster.compute
    slowness = [max(1.0, each * factor) if each > 1.0 else each for each in compute.slowness]
    stragglers = [dataclasses.replace(s, factor=max(1.0, s.factor * factor)) for s in cluster.stragglers]
    return dataclasses.replace(cluster, compute=dataclasses.replace(compute, slowness=slowness), stragglers=stragglers)


def _scaled(name: str) -> Callable[[Cluster, float], Cluster]:
    def change(cluster: Cluster, factor: float) -> Cluster:
        changed: Any = {name: getattr(cluster, name) * factor}
        return dataclasses.replace(cluster, **changed)

    return change


def _model(cluster: Cluster, factor: float) -> Cluster:
    return dataclasses.replace(cluster, model_bytes=(cluster.model_bytes or DEFAULT_MODEL_BYTES) * factor)


ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption(
        "time of a gradient", _gradient, say_seconds, lambda c, f: _compute(c, f, "seconds", "seconds_per_frame")
    ),
    Assumption(
        "jitter of gradients", lambda c: _positive(c.compute.jitter), lambda v: f"{v:.2g}",
        lambda c, f: _compute(c, f, "jitter"),
    ),
    Assumption("slowest learner", _slowness, lambda v: f"{v:.3g} x", _slower),
    Assumption("model size", lambda c: c.model_bytes or DEFAULT_MODEL_BYTES, say_bytes, _model),
    Assumption(
        "bandwidth between nodes", lambda c: c.inter_node.bandwidth if _several(c) else None, _rate,
        lambda c, f: _link(c, "inter_node", "bandwidth", f),
    ),
    Assumption(
        "latency between nodes",
        lambda c: _positive(c.inter_node.latency_seconds) if _several(c) else None, say_seconds,
        lambda c, f: _link(c, "inter_node", "latency_seconds", f),
    ),
    Assumption(
        "bandwidth inside a node", lambda c: c.intra_node.bandwidth if _crowded(c) else None, _rate,
        lambda c, f: _link(c, "intra_node", "bandwidth", f),
    ),
    Assumption(
        "latency inside a node",
        lambda c: _positive(c.intra_node.latency_seconds) if _crowded(c) else None, say_seconds,
        lambda c, f: _link(c, "intra_node", "latency_seconds", f),
    ),
    Assumption(
        "time of an operation", lambda c: _positive(c.operation_seconds), say_seconds, _scaled("operation_seconds"),
    ),
    Assumption(
        "copying for an operation", lambda c: _positive(c.copy_bandwidth), _rate, _scaled("copy_bandwidth"),
    ),
    Assumption("serving", lambda c: c.serving_bandwidth, _rate, _scaled("serving_bandwidth")),
)  # fmt: skip
"""In the order in which they are shown."""


def assumptions_of(cluster: Cluster) -> list[Assumption]:
    """Return the assumptions that have an effect in ``cluster``."""
    return [assumption for assumption in ASSUMPTIONS if assumption.value(cluster) is not None]
