"""BMUF by hand, in both forms; where a block ends; what a loss leaves of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quadratic_task import walk
from roundelay.errors import SettingsError
from roundelay.runtimes.cluster import Cluster, Fault
from roundelay.strategies import BMUF
from tiny_jobs import simulated, tiny_job


def test_two_blocks_by_hand_with_nesterov_momentum() -> None:
    # eta = 1 - 1/2.  Block 1: 2 and 4, mean 3; G = 3, Delta = 3, W = 3, Wg = 3 + 3/2 = 4.5
    # block 2, from 4.5: to 0 and 16, 2.25 and 10.25, mean 6.25; G = 1.75, Delta = 1.5 + 1.75 = 3.25, W = 6.25,
    # Wg = 6.25 + 1.625
    path = walk(BMUF(block=1), [4, 8, 0, 16], 2)
    assert path.weights == {0: [4.5, 7.875], 1: [4.5, 7.875]}
    assert path.consensus == 6.25


def test_two_blocks_by_hand_with_classical_momentum() -> None:
    # block 1: W = Wg = 3; block 2, from 3: 1.5 and 9.5, mean 5.5; G = 2.5, Delta = 1.5 + 2.5 = 4, W = Wg = 7
    path = walk(BMUF(block=1, form="classical"), [4, 8, 0, 16], 2)
    assert path.weights == {0: [3, 7], 1: [3, 7]}
    assert path.consensus == 7


def test_block_learning_rate_by_hand() -> None:
    # eta = 0, zeta = 2: G = 3, W = Wg = 6; then from 6: 3 and 11, mean 7, G = 1, W = 6 + 2
    assert walk(BMUF(block=1, momentum=0.0, rate=2.0), [4, 8, 0, 16], 2).consensus == 8


def test_an_unfinished_block_counts_without_momentum() -> None:
    # block 1 of two steps: 0 -> 2 -> 1 and 0 -> 4 -> 10, mean 5.5 = W = Delta; Wg = 5.5 + 2.75 = 8.25
    # one step more, to 8.25 and 10.25: mean 8.25 + 0.5; the model is 5.5 + 0.5
    assert walk(BMUF(block=2), [4, 8, 0, 16, 8.25, 10.25], 2).consensus == pytest.approx(6.0)


def test_blocks_in_frames() -> None:
    strategy: Any = simulated(tiny_job(BMUF(block_frames=33)), 2).trainings[0].strategy
    assert strategy.block_steps == 3


def test_momentum_survives_a_loss() -> None:
    # The model starts anew from the mean of the weights, such that the next block starts exactly there.
    cluster, kept = Cluster(faults=[Fault(learner=3, at_seconds=0.95)]), []

    class Watched(BMUF):
        def regroup(self, learner: Any) -> None:
            before = self.delta.clone()
            super().regroup(learner)
            kept.append(float(before.norm()))
            assert torch.equal(before, self.delta)
            assert torch.allclose(self.block_start(self.model), learner.weights, atol=1e-7)
            assert self.eta == pytest.approx(2 / 3)

    simulated(tiny_job(Watched(block=2)), 4, cluster)
    assert len(kept) == 3
    assert all(norm > 0 for norm in kept)


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (BMUF(block=0), "block must be at least 1, not 0"),
        (BMUF(block_frames=-5), "block_frames must be at least 1, not -5"),
        (BMUF(momentum=1.0), "momentum must be at least 0 and below 1, not 1.0"),
        (BMUF(rate=0.0), "rate must be above 0, not 0.0"),
    ],
)
def test_refuses(strategy: BMUF, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        simulated(tiny_job(strategy), 2)
