"""A cluster of eight nodes with slow links between them, whose times can be computed by hand."""

from __future__ import annotations

from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink

WIDE = Cluster(
    nodes=8,
    learners_per_node=1,
    model_bytes=8e7,
    inter_node=NetworkLink(1e-3, 1e9),
    compute=Compute(seconds=0.1),
    frames=100,
)
ALL_REDUCE = 2 * 7 * (1e-3 + 8e7 / 8 / 1e9)
"""Seconds that an all-reduce of the model takes on it."""
