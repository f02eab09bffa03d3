"""Gossip-PGA: gossip at each step, the mean over all every so many."""

from __future__ import annotations

import pytest
import torch

from quadratic_task import Walk, walk
from roundelay.errors import SettingsError
from roundelay.strategies import GossipPGA, Synchronous
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import find_topology
from tiny_jobs import simulated, tiny_job


def last(path: Walk) -> list[float]:
    """Return where every learner came to."""
    return [path.weights[learner][-1] for learner in sorted(path.weights)]


def test_four_learners_and_two_steps_by_hand() -> None:
    """Rate 1, targets 0 3 6 9: after step 1 the ring's thirds, 4 3 6 5; after step 2 the mean of 0 3 6 9, 4.5."""
    first = walk(GossipPGA(period=2), [0, 3, 6, 9], 4, rate=1.0)
    assert last(first) == pytest.approx([4.0, 3.0, 6.0, 5.0], rel=1e-12)
    second = walk(GossipPGA(period=2), [0, 3, 6, 9, 0, 3, 6, 9], 4, rate=1.0)
    assert last(second) == pytest.approx([4.5] * 4, rel=1e-12)


@pytest.mark.parametrize("topology", ["ring", "random-ring", "complete", "exponential"])
def test_it_is_the_matrix_product_of_its_equation(topology: str) -> None:
    learners, steps, period, rate = 6, 7, 3, 0.5
    targets = [float((5 * k) % 13) for k in range(learners * steps)]
    outcome = walk(GossipPGA(period=period, topology=topology), targets, learners, rate=rate)  # type: ignore[arg-type]
    mixing, x = Mixing(find_topology(topology)), torch.zeros(learners, dtype=torch.float64)
    for k in range(steps):
        x = x - rate * (x - torch.tensor(targets[k * learners : (k + 1) * learners], dtype=torch.float64))
        x = x.mean().expand(learners) if (k + 1) % period == 0 else mixing.matrix(learners, k) @ x
    assert last(outcome) == pytest.approx(x.tolist(), rel=1e-12)


def test_with_period_one_it_is_synchronous_sgd() -> None:
    gossip = simulated(tiny_job(GossipPGA(period=1), minibatches=60), 4)
    synchronous = simulated(tiny_job(Synchronous(), minibatches=60), 4)
    torch.testing.assert_close(gossip.consensus, synchronous.consensus, rtol=0, atol=1e-6)


def test_a_global_average_keeps_learners_nearer_than_gossip_alone() -> None:
    def distance(period: int) -> float:
        job = tiny_job(GossipPGA(period=period), minibatches=16 * 11, debug=True, budget={"evaluate_every": 16 * 11})
        return simulated(job, 16).trainings[0].scores["distance"]

    assert distance(5) < 0.8 * distance(1000)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(SettingsError, match="period must be at least 1, not 0"):
        GossipPGA(period=0).check(4)
    with pytest.raises(SettingsError, match=r"row 1 sums to 0\.9"):
        GossipPGA(matrix=[[0.5, 0.5], [0.5, 0.4]]).check(2)
