"""Synchronous SGD by hand, and in parts that overlap the backward pass."""

from __future__ import annotations

import pytest
import torch

from quadratic_task import walk
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.strategies import Synchronous
from tiny_jobs import simulated, tiny_job


def test_two_steps_by_hand() -> None:
    # mean gradient at 0: (-4 - 8)/2 = -6, w = 0 + 6/2 = 3; at 3: (3 - 13)/2 = -5, w = 3 + 5/2 = 5.5
    path = walk(Synchronous(), [4, 8, 0, 16], 2)
    assert path.weights == {0: [3.0, 5.5], 1: [3.0, 5.5]}
    assert path.consensus == 5.5


def test_gradients_weigh_by_their_frames() -> None:
    # (1 * -4 + 3 * -8)/4 = -7, w = 3.5
    assert walk(Synchronous(), [4, 8], 2, task={"counts": [1, 3]}).consensus == 3.5


def test_a_learner_without_a_minibatch_weighs_nothing() -> None:
    # as by hand above, then the one minibatch that is left: 5.5 + (16 - 5.5)/2
    assert walk(Synchronous(), [4, 8, 0, 16, 16], 2).consensus == pytest.approx(10.75)


def test_parts_give_the_same_bits_sooner() -> None:
    cluster = Cluster(intra_node=NetworkLink(1e-4, 1e5), compute=Compute(seconds=0.05))
    whole = simulated(tiny_job(Synchronous()), 4, cluster)
    parts = simulated(tiny_job(Synchronous(bucket_bytes=128)), 4, cluster)
    assert torch.equal(whole.consensus, parts.consensus)
    assert parts.seconds < whole.seconds
