"""Stochastic gradient push: what is pushed arrives, and the weights make up for uneven sums."""

from __future__ import annotations

import pytest
import torch

from quadratic_task import Walk, walk
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster, Fault
from roundelay.strategies import SGP
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import find_topology
from tiny_jobs import sgd, simulated, tiny_job

STAR = [(0, 1), (0, 2), (0, 3)]


def last(path: Walk) -> list[float]:
    """Return where every learner came to."""
    return [path.weights[learner][-1] for learner in sorted(path.weights)]


def test_four_learners_and_two_steps_by_hand() -> None:
    """Rate 1, targets 1 2 3 4, then the same: after step 1, x = target; each averages with the one before it.

    z = 2.5 1.5 2.5 3.5; step 2, rate 1: x = 1 2 3 4 again, now averaged with the one two before it: 2 3 2 3.
    """
    outcome = walk(SGP(), [1, 2, 3, 4, 1, 2, 3, 4], 4, rate=1.0)
    assert last(outcome) == [2.0, 3.0, 2.0, 3.0]
    assert outcome.consensus == 2.5


def test_two_steps_on_a_path_by_hand() -> None:
    """Three learners, 0-1-2; learner 1 has two peers and keeps a third, the others keep a half.

    Rate 1, targets 0 6 6: x = 0 6 6.  Pushed: x = 0+2, 0+2+3, 2+3; omega = 5/6, 4/3, 5/6.  z = 2.4, 3.75, 6.
    """
    outcome = walk(SGP(edges=[(0, 1), (1, 2)]), [0, 6, 6], 3, rate=1.0)
    assert last(outcome) == pytest.approx([2.4, 3.75, 6.0], rel=1e-12)
    omegas = [training.strategy.push_weight for training in outcome.outcome.trainings]  # type: ignore[attr-defined]
    assert omegas == pytest.approx([5 / 6, 4 / 3, 5 / 6], rel=1e-6)
    assert outcome.consensus == pytest.approx(4.0, rel=1e-6)  # the mean of x, conserved


@pytest.mark.parametrize("learners", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("topology", ["exponential", "ring", "random-ring", "hopping-ring"])
def test_push_sum_weights_sum_to_the_number_of_learners(topology: str, learners: int) -> None:
    outcome = simulated(tiny_job(SGP(topology=topology), minibatches=60), learners)
    omegas = [training.strategy.push_weight for training in outcome.trainings]  # type: ignore[attr-defined]
    assert sum(omegas) == pytest.approx(learners, rel=1e-6)
    assert omegas == pytest.approx([1.0] * learners, rel=1e-6)  # rows sum to 1, too


def test_on_an_uneven_graph_all_tend_to_the_mean_by_their_weights() -> None:
    class Scattered(SGP):
        def setup(self, learner: Learner) -> None:
            learner.weights.copy_(torch.full_like(learner.weights, float(learner.comm.rank)))
            super().setup(learner)

    outcome = simulated(tiny_job(Scattered(edges=STAR), minibatches=160, optimizer=sgd(0.0)), 4)
    omegas = [training.strategy.push_weight for training in outcome.trainings]  # type: ignore[attr-defined]
    assert sum(omegas) == pytest.approx(4.0, rel=1e-5)
    assert max(omegas) / min(omegas) > 1.5
    for training in outcome.trainings:
        torch.testing.assert_close(
            training.learner.weights, torch.full_like(training.learner.weights, 1.5), rtol=0, atol=1e-4
        )


def test_it_is_the_matrix_product_of_its_equation() -> None:
    """Four steps of eight learners in float64, from their own gradients."""
    learners, steps, rate = 8, 4, 0.5
    targets = [float((7 * k) % 11) for k in range(learners * steps)]
    outcome = walk(SGP(), targets, learners, rate=rate)
    x, mixing = torch.zeros(learners, dtype=torch.float64), Mixing(find_topology("exponential"))
    for k in range(steps):
        grad = x - torch.tensor(targets[k * learners : (k + 1) * learners], dtype=torch.float64)
        x = mixing.matrix(learners, k) @ (x - rate * grad)
    assert last(outcome) == pytest.approx(x.tolist(), rel=1e-12)


def test_one_learner_takes_plain_steps() -> None:
    assert last(walk(SGP(), [4, 4], 1, rate=0.5)) == [3.0]


def test_what_does_not_fit_is_named_and_after_a_loss_goes_on_otherwise() -> None:
    with pytest.raises(SettingsError, match="'butterfly' needs a power of two learners, not 6"):
        SGP(topology="butterfly").check(6)
    with pytest.raises(SettingsError, match="did you mean 'exponential'"):
        SGP(topology="exponental").check(6)
    with pytest.raises(SettingsError, match="do not connect 5 learners"):
        SGP(edges=STAR).check(5)
    cluster = Cluster(faults=[Fault(learner=2, at_seconds=0.55)])
    outcome = simulated(tiny_job(SGP(topology="butterfly"), minibatches=60), 4, cluster)
    assert outcome.trainings[0].strategy.fallback_note == "butterfly does not fit 3 learners: exponential instead"
    assert torch.isfinite(outcome.consensus).all()
