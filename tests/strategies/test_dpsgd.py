"""D-PSGD by hand; its matrices; what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quadratic_task import walk
from roundelay.errors import SettingsError
from roundelay.strategies import DPSGD
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import find_topology
from tiny_jobs import simulated, tiny_job


def test_two_steps_by_hand() -> None:
    # step 1: all start at 0, half of the way to 3, 6, 9: 1.5, 3, 4.5
    # step 2: three learners on a ring mix to their mean, 3, less half of g = w - 0: 3 - .75, 3 - 1.5, 3 - 2.25
    path = walk(DPSGD(), [3, 6, 9, 0, 0, 0], 3)
    assert path.weights == {0: [1.5, 2.25], 1: [3.0, 1.5], 2: [4.5, 0.75]}
    assert path.consensus == pytest.approx(1.5)


@pytest.mark.parametrize("topology", ["ring", "random-ring", "complete", "exponential"])
def test_follows_its_matrices(topology: Any) -> None:
    # W <- T_k W - (W - c)/2 in numpy, with the matrices of mixing.py
    size, targets = 5, [float(k * k % 17) for k in range(20)]
    mixing, weights = Mixing(find_topology(topology, seed=3)), np.zeros(size)
    for step in range(4):
        matrix = mixing.matrix(size, step).numpy()
        weights = matrix @ weights - 0.5 * (weights - targets[size * step : size * step + size])
    path = walk(DPSGD(topology=topology, seed=3), targets, size)
    assert [path.weights[learner][-1] for learner in range(size)] == pytest.approx(weights, abs=1e-12)


def test_a_matrix_of_ones_own() -> None:
    matrix = [[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]]
    # 1.5, 3, 4.5 as above; then T w - w/2: 2.25 - .75, 2.625 - 1.5, 4.125 - 2.25
    path = walk(DPSGD(matrix=matrix), [3, 6, 9, 0, 0, 0], 3)
    assert [path.weights[learner][-1] for learner in range(3)] == [1.5, 1.125, 1.875]


def test_one_learner_is_plain_sgd() -> None:
    one, plain = simulated(tiny_job(DPSGD()), 1), simulated(tiny_job(DPSGD(topology="complete")), 1)
    assert torch.equal(one.consensus, plain.consensus)


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        ([[0.5, 0.4], [0.5, 0.5]], "row 0 sums to 0.9, not 1"),
        ([[1.0]], "is for 1 learners, not 2"),
    ],
)
def test_refuses_a_matrix_that_does_not_mix(matrix: list[list[float]], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        simulated(tiny_job(DPSGD(matrix=matrix)), 2)
