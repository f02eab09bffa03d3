"""Compressed gradients under timing only are as large as real ones."""

from __future__ import annotations

import io
import json

import pytest

from roundelay.errors import SettingsError
from roundelay.planning.placeholders import LAYERS
from roundelay.planning.timing_simulation import time_only
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import simulate
from roundelay.strategies.compression import Compression, OneBit, PowerSGD, TopK
from roundelay.strategies.hierarchical import Hierarchical
from roundelay.strategies.synchronous import Synchronous
from tiny_jobs import tiny_job

WIDTH, LEARNERS, STEPS = 64, 4, 10


def sent(text: str) -> float:
    lines = [json.loads(line) for line in text.splitlines()]
    return sum(
        float(line["bytes"]) for line in lines if line["event"] == "totals" and line["member"].startswith("learner")
    )


@pytest.mark.parametrize(
    "kind", [OneBit(), TopK(fraction=0.05), PowerSGD(rank=2)], ids=lambda kind: type(kind).__name__
)
def test_as_many_bytes_as_a_real_run(kind: Compression) -> None:
    task = {"features": WIDTH, "classes": WIDTH, "hidden": [WIDTH] * (LAYERS - 1), "frames_per_epoch": 16 * 40}
    job = tiny_job(Synchronous(compression=kind), minibatches=LEARNERS * STEPS, task=task)
    text = io.StringIO()
    outcome = simulate(job.training, Cluster(), learners=LEARNERS, record=Record(text, clock="virtual"))
    model_bytes = outcome.trainings[0].learner.weights.nbytes
    timed = time_only(
        Synchronous(compression=kind), Cluster(model_bytes=model_bytes), learners=LEARNERS, steps=STEPS
    ).record
    assert timed is not None
    mine = sum(totals["bytes"] for member, totals in timed.totals.items() if member.startswith("learner"))
    # Both also begin with a broadcast; a real run evaluates, too, and has biases, which PowerSGD does not compress.
    assert mine == pytest.approx(sent(text.getvalue()), rel=0.35)
    plain = LEARNERS * STEPS * model_bytes * 2 * (LEARNERS - 1) / LEARNERS
    assert mine < plain / 2


def test_compression_saves_time_on_a_slow_network() -> None:
    slow = Cluster(nodes=4, learners_per_node=1, model_bytes=1e8)
    seconds = [
        time_only(Synchronous(compression=kind), slow, learners=4, steps=10).seconds
        for kind in (None, PowerSGD(), OneBit())
    ]
    assert seconds[1] < seconds[0] / 1.5
    assert seconds[2] < seconds[0] / 1.5
    nodes = Hierarchical(outer=Synchronous(compression=OneBit()), learners_per_node=2)
    assert time_only(nodes, slow, learners=8, steps=5).seconds > 0


def test_one_that_is_not_known_is_refused() -> None:
    class Odd(Compression):
        """Of unknown size."""

    with pytest.raises(SettingsError, match="compression Odd cannot be planned"):
        time_only(Synchronous(compression=Odd()), Cluster(), learners=2, steps=2)
