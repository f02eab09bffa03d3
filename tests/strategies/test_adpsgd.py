"""AD-PSGD by hand, on the ring and in pairs; that mixing is what the matrices say, and converges at any speeds."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import numpy as np
import pytest

from quadratic_task import scattered, walk
from roundelay.errors import SettingsError
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.strategies import ADPSGD, PairwiseADPSGD, RandomADPSGD
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import find_topology
from tiny_jobs import simulated, tiny_job


def test_two_steps_by_hand() -> None:
    # step 1: half of the way to 3, 6, 9: 1.5, 3, 4.5.  Step 2: learner 0 is asked by learner 2 and adds (4.5 - 1.5)/3;
    # it asks learner 1, which adds (1.5 - 3)/3, and subtracts that: 1.5 + 1 + 0.5 = 3; less half of g = 1.5 - 0: 2.25.
    # The others come to 3 in the same way.
    path = walk(ADPSGD(), [3, 6, 9, 0, 0, 0], 3)
    assert [path.weights[learner][0] for learner in range(3)] == [1.5, 3, 4.5]
    assert [path.weights[learner][1] for learner in range(3)] == pytest.approx([2.25, 1.5, 0.75])


def test_a_fast_learner_mixes_on_with_a_slow_one() -> None:
    # Learner 1 takes 2.5 times as long.  Both begin at 0, and learner 0 goes to 8/2 = 4 while learner 1 computes.
    # Learner 0 begins again: sends 4; learner 1, which has heard learner 0 already, adds (4 - 0)/2: it is at 2.
    # Learner 0 subtracts 2 and steps towards 4: 2 + (4 - 4)/2 = 2.  It begins again: sends 2; learner 1 adds
    # (2 - 2)/2.  Learner 1 ends its first step, at 2 + (8 - 0)/2 = 6, as the gradient was taken at 0.
    # Learner 0 subtracts 0 and steps towards 3: 2.5.
    path = walk(ADPSGD(), [8, 8, 4, 3], 2, slowness=[1.0, 2.5])
    assert path.weights == {0: [4, 2, 2.5], 1: [6]}


def test_a_fast_learner_asks_a_slow_one_that_should_ask() -> None:
    # Learner 0 should ask and takes 4.5 times as long.  It begins by sending 0; learner 1 goes to 4, 6, 7 of 8.  Before
    # its fourth step it has heard nothing for two iterations: it sends 7, and learner 0, which is still at 0, adds 3.5.
    # Learner 1 subtracts 3.5 and steps towards 8: 3.5 + 0.5 = 4; sends 4, and learner 0 adds (4 - 3.5)/2: 3.75.
    # Learner 0 ends at 3.75 + (8 - 0)/2 = 7.75; learner 1 at 4 - 0.25 + (8 - 4)/2 = 5.75.
    path = walk(ADPSGD(), [8] * 6, 2, slowness=[4.5, 1.0])
    assert path.weights == {0: [7.75], 1: [4, 6, 7, 4, 5.75]}


@pytest.mark.parametrize("topology", ["ring", "random-ring", "complete"])
@pytest.mark.parametrize("size", [2, 4, 5])
def test_at_equal_speeds_it_is_its_matrix(topology: Any, size: int) -> None:
    targets = [float(k * k % 17) for k in range(4 * size)]
    mixing, weights = Mixing(find_topology(topology, seed=1)), np.zeros(size)
    for step in range(4):
        matrix = mixing.matrix(size, step).numpy()
        weights = matrix @ weights - 0.5 * (weights - targets[size * step : size * step + size])
    path = walk(ADPSGD(topology=topology, seed=1), targets, size)
    assert [path.weights[learner][-1] for learner in range(size)] == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "strategy", [ADPSGD(), ADPSGD(share=0.45), ADPSGD(topology="complete"), RandomADPSGD(), PairwiseADPSGD()]
)
def test_mixing_alone_contracts_at_any_speeds(strategy: Any, seed: int) -> None:
    # At rate 0, with speeds that differ by up to a factor of 10 and messages that take longer than some gradients.
    rng = random.Random(seed)
    compute = Compute(seconds=0.1, jitter=0.5, slowness=[rng.choice([0.3, 1.0, 3.0]) for _ in range(6)])
    cluster = Cluster(intra_node=NetworkLink(latency_seconds=rng.choice([1e-5, 0.02, 0.2])), compute=compute)
    path = walk(scattered(strategy, lambda learner: learner.index**2 % 7), [0.0] * 400, 6, rate=0.0, cluster=cluster)
    start = [float(number**2 % 7) for number in range(6)]
    ends = [float(training.learner.weights[0]) for training in path.outcome.trainings]
    assert sum(ends) == pytest.approx(sum(start), abs=1e-9)
    assert max(ends) - min(ends) < 0.05 * (max(start) - min(start))
    assert max(abs(weight) for weights in path.weights.values() for weight in weights) < 2 * max(start)


def test_staleness_counts_mixings() -> None:
    file = io.StringIO()
    simulated(tiny_job(ADPSGD(), minibatches=20), 4, record=Record(file, clock="virtual"))
    steps = [line for line in map(json.loads, file.getvalue().splitlines()) if line["event"] == "step"]
    assert {line["staleness"] for line in steps} == {2.0}  # two neighbours, one asked and one asking


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (ADPSGD(share=0.6), "share must be above 0 and below 0.5, not 0.6"),
        (ADPSGD(share=0.5), "exchanges of 5 learners on topology 'ring' may cross"),
        (ADPSGD(topology="complete", share=0.45), "below 0.4, not 0.45"),
        (PairwiseADPSGD(), "an even number of learners, not 5"),
    ],
)
def test_refuses(strategy: Any, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        simulated(tiny_job(strategy), 5)
