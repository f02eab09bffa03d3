"""Elastic averaging by hand: asynchronous, synchronous, with momentum."""

from __future__ import annotations

import itertools

import pytest

from quadratic_task import walk
from roundelay.errors import SettingsError
from roundelay.strategies import EASGD, SynchronousEASGD
from tiny_jobs import sgd, simulated, tiny_job


def test_two_steps_by_hand() -> None:
    # step 1: learners and centre are all at 0, no difference; 2 and 4
    # step 2: e = (2 - 0)/4 = 0.5, centre 0.5, learner 0 at 2 - 0.5 - 2/2 = 0.5
    #         e = (4 - 0.5)/4 = 0.875, centre 1.375, learner 1 at 4 - 0.875 + 12/2 = 9.125
    path = walk(EASGD(period=1, elasticity=0.25), [4, 8, 0, 16], 2)
    assert path.weights == {0: [2, 0.5], 1: [4, 9.125]}
    assert float(path.outcome.trainings[0].learner.weights[0]) == 1.375  # the server's
    # one more exchange with each: (1 - 9/16) of the way from 1.375 to the mean 4.8125
    assert path.consensus == 1.375 + 7 / 16 * (4.8125 - 1.375)


@pytest.mark.parametrize("kind", [EASGD, SynchronousEASGD])
def test_momentum_by_hand(kind: type[EASGD]) -> None:
    # v = -(0 - 4)/2 = 2, x = 2; gradient at 2 + 2/2 = 3: v = 2/2 - 3/2 = -0.5, x = 1.5
    path = walk(kind(period=1, elasticity=0.0, momentum=0.5), [4, 0], 1)
    assert path.weights == {0: [2, 1.5]}


def test_a_run_of_less_than_a_period_counts() -> None:
    # one step from 0 to 2 and to 4; then one exchange each with the centre at 0, in the mean over both orders:
    # (1 - (1 - 1/4)^2) of the mean 3
    assert walk(EASGD(period=10, elasticity=0.25), [4, 8], 2).consensus == pytest.approx(0.4375 * 3)
    # all at once: 2 * 1/4 of the mean 3
    assert walk(SynchronousEASGD(period=10, elasticity=0.25), [4, 8], 2).consensus == pytest.approx(1.5)


def test_the_consensus_is_the_mean_over_all_orders_of_one_exchange_each() -> None:
    ends, centre, alpha = [2.0, 4.0, 1.0], 0.0, 0.3
    orders = []
    for order in itertools.permutations(ends):
        moved = centre
        for one in order:
            moved += alpha * (one - moved)
        orders.append(moved)
    path = walk(EASGD(period=10, elasticity=alpha), [4, 8, 2], 3)
    assert path.consensus == pytest.approx(sum(orders) / len(orders))


def test_exchanges_every_period_only() -> None:
    # alone for steps 2 and 3; at step 4 (steps done: 3) x = 1, the centre is at 0, e = 0.5: centre 0.5
    path = walk(EASGD(period=3, elasticity=0.5), [8, 0, 0, 0], 1)
    assert path.weights == {0: [4, 2, 1, 0]}
    assert float(path.outcome.trainings[0].learner.weights[0]) == 0.5
    assert path.consensus == 0.25  # one more exchange with the learner at 0


@pytest.mark.parametrize(("kind", "learners"), [(EASGD, 3), (SynchronousEASGD, 3), (EASGD, 1)])
def test_default_elasticity(kind: type[EASGD], learners: int) -> None:
    outcome = simulated(tiny_job(kind(), minibatches=6), learners)
    for training in outcome.trainings:
        assert isinstance(training.strategy, EASGD)
        assert training.strategy.alpha == pytest.approx(min(0.5, 0.9 / learners))


@pytest.mark.parametrize("kind", [EASGD, SynchronousEASGD])
def test_one_learner_and_the_centre_do_not_swing(kind: type[EASGD]) -> None:
    """As they do at 0.9, each passing the other at every exchange, with momentum ever further."""
    targets = [8.0] * 120

    def end(strategy: EASGD) -> float:
        return abs(walk(strategy, targets, 1, optimizer=sgd(0.5, 0.9)).consensus - 8)

    assert end(kind(period=2)) < 1e-3
    assert end(kind(period=2, elasticity=0.9)) > 1


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (EASGD(period=0), "period must be at least 1, not 0"),
        (EASGD(elasticity=1.5), "elasticity must be at least 0 and at most 1, not 1.5"),
        (EASGD(momentum=1.0), "momentum must be at least 0 and below 1, not 1.0"),
        (SynchronousEASGD(elasticity=0.3), "at most 1/N for N = 4 learners, not 0.3"),
    ],
)
def test_refuses(strategy: EASGD, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        simulated(tiny_job(strategy), 4)
