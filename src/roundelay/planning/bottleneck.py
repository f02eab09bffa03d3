"""The bottleneck of a strategy on a cluster: the resource that is busy for most of the time."""

from __future__ import annotations

import statistics

from roundelay.planning.timing_simulation import TotalsSnapshot

Spent = dict[str, dict[str, float]]
SLOWER = 1.1  # times the median gradient: a learner above this is slow


def bottlenecks(
    spent: Spent, begin: TotalsSnapshot, end: TotalsSnapshot, *, servers: int = 0, together: bool = False
) -> dict[str, float]:
    """Return the share of the time between two snapshots in which each resource was busy.

    If learners step ``together``, waiting learners wait for the one that is slowest at this step.
    """
    seconds = end.time - begin.time
    busy = _computing(spent, seconds)
    for kind, own in (("inter_node", "the links between nodes"), ("intra_node", "the links inside a node")):
        links = [
            (now[0] - before[0], now[1] - before[1])
            for now, before in zip(end.links[kind], begin.links[kind], strict=True)
        ]
        mine, others = _of_servers(links, kind, servers)
        for name, some in (("the server's link", mine), (own, others)):
            used, latent = max(some, default=(0.0, 0.0))
            name = "latency of the all-reduce" if latent > used / 2 else name
            busy[name] = max(busy.get(name, 0.0), used / seconds)
    serving = [totals.get("serve", 0.0) for member, totals in spent.items() if member.startswith("server")]
    if serving:
        busy["the server's own work"] = max(serving) / seconds
    learners = [totals for member, totals in spent.items() if member.startswith("learner")]
    waiting = statistics.mean(totals.get("wait", 0.0) / seconds for totals in learners)
    if waiting > max(busy.values()):
        busy["the slowest learner at each step" if together else "latency of messages"] = waiting
    return {name: round(min(share, 1.0), 6) for name, share in busy.items() if share > 0}


def _computing(spent: Spent, seconds: float) -> dict[str, float]:
    """Return how busy learners are with gradients, and the slowest learner if one is slow."""
    learners = [
        totals for member, totals in spent.items() if member.startswith("learner") and totals.get("compute count")
    ]
    each = sorted((totals["compute"] / totals["compute count"], totals["compute"] / seconds) for totals in learners)
    if not each:
        return {"computing": 0.0}
    typical, slowest = each[len(each) // 2], each[-1]
    busy = {"computing": statistics.median(share for _, share in each)}
    if slowest[0] > SLOWER * typical[0] and slowest[1] > SLOWER * busy["computing"]:
        busy["the slowest learner"] = slowest[1]
    return busy


def _of_servers(
    links: list[tuple[float, float]], kind: str, servers: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Separate the links of servers from those of learners: servers are first in a node, and last among nodes."""
    if not servers:
        return [], links
    if kind == "intra_node":
        return links[:servers], links[servers:]
    return (links[-servers:], links[:-servers]) if len(links) > 1 else ([], links)
