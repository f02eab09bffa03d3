"""The cluster of a simulation: by the name of a profile, by a file, by a few numbers, or as an object."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roundelay import config
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.planning.cluster_profiles import find_cluster
from roundelay.runtimes.cluster import Cluster
from roundelay.task import Task

LINK = ("latency_seconds", "bandwidth")
WARM, MEASURED = 2, 12  # gradients that are not counted, since the first ones are slow; and all

Described = Cluster | Path | str | Mapping[str, Any] | None


def describe_cluster(given: Described, learners: int, gradient_seconds: Any = None) -> Cluster:
    """Return the cluster for ``learners`` learners, with ``gradient_seconds`` as the time of a minibatch's gradient.

    A profile or a file describes a machine: the size of the model is the model's own.  A table with
    ``latency_seconds`` or ``bandwidth`` gives each learner a node, and such a link.
    """
    if isinstance(given, Cluster):
        cluster = given
    elif isinstance(given, Mapping):
        cluster = config.build(Cluster, _by_link(given, learners) if {*LINK} & given.keys() else given, "cluster")
    elif isinstance(given, str | Path):
        cluster = dataclasses.replace(find_cluster(str(given)), model_bytes=None)
    elif given is None:
        cluster = Cluster()
    else:
        raise SettingsError(f"cluster: must be a profile's name, a file, a table or a Cluster, not {given!r}")
    if gradient_seconds is None:
        return cluster
    if not isinstance(gradient_seconds, int | float) or not 0 < gradient_seconds < math.inf:
        raise SettingsError(f"gradient_seconds must be above 0, not {gradient_seconds!r}")
    compute = dataclasses.replace(cluster.compute, seconds=float(gradient_seconds), seconds_per_frame=0.0, trace=[])
    return dataclasses.replace(cluster, compute=compute)


def _by_link(given: Mapping[str, Any], learners: int) -> dict[str, Any]:
    link = {name: float(given[name]) for name in LINK if name in given}
    rest = {name: value for name, value in given.items() if name not in LINK}
    return {"name": "nodes of one learner", "nodes": learners, "learners_per_node": 1, "inter_node": link} | rest


def measure_gradient(task: Task) -> float:
    """Return the median seconds of a gradient on this machine, by the number of threads that torch has here."""
    learner, taken = Learner(task.make_module()), []
    for index in range(MEASURED):
        batch = task.load(0, index % task.minibatches_per_epoch)
        begin = time.perf_counter()
        learner.take_snapshot()
        task.gradient(learner, batch)
        learner.collect_grad()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[WARM:])
