"""Delay by one by hand; that it hides the all-reduce; that it is D-PSGD with complete mixing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quadratic_task import walk
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.strategies import DPSGD, DelayByOne, Synchronous
from tiny_jobs import simulated, tiny_job


def test_two_steps_by_hand() -> None:
    # step 1: 2 and 4; step 2: from their mean, 3, along the gradients at 2 and at 4: 3 - 2/2 and 3 + 12/2
    path = walk(DelayByOne(), [4, 8, 0, 16], 2)
    assert path.weights == {0: [2, 2], 1: [4, 9]}
    assert path.consensus == 5.5


def test_two_steps_on_a_ring_by_hand() -> None:
    # step 1: 1, 2, 3, 4; step 2: a third each with both neighbours, (1 + 2 + 4)/3, ..., less half of g = w
    path = walk(DelayByOne(topology="ring"), [2, 4, 6, 8, 0, 0, 0, 0], 4)
    assert [path.weights[k][1] for k in range(4)] == pytest.approx([7 / 3 - 0.5, 2 - 1, 3 - 1.5, 8 / 3 - 2])


@pytest.mark.parametrize(("topology", "same"), [("all-reduce", "complete"), ("ring", "ring")])
def test_is_dpsgd_in_another_order_of_sums(topology: Any, same: Any) -> None:
    mine, theirs = simulated(tiny_job(DelayByOne(topology=topology)), 5), simulated(tiny_job(DPSGD(topology=same)), 5)
    assert torch.allclose(mine.consensus, theirs.consensus, atol=1e-6)


def test_hides_an_all_reduce_that_takes_as_long_as_the_gradient() -> None:
    cluster = Cluster(
        intra_node=NetworkLink(0.0, 1e5), model_bytes=8e3, compute=Compute(seconds=0.12)
    )  # 0.12 s an all-reduce
    overlapped = simulated(tiny_job(DelayByOne(), minibatches=240), 4, cluster).seconds
    one_by_one = simulated(tiny_job(Synchronous(), minibatches=240), 4, cluster).seconds
    assert one_by_one / overlapped == pytest.approx(2.0, rel=0.05)
