"""Synchronous elastic averaging by hand."""

from __future__ import annotations

from quadratic_task import walk
from roundelay.strategies import SynchronousEASGD


def test_two_synchronous_steps_by_hand() -> None:
    # step 2: 2 - 2/4 - 2/2 = 0.5 and 4 - 4/4 + 12/2 = 9; beta = 1/2: centre at half of the mean of 2 and 4
    path = walk(SynchronousEASGD(period=1, elasticity=0.25), [4, 8, 0, 16], 2)
    assert path.weights == {0: [2, 0.5], 1: [4, 9]}
    assert float(path.strategy(0).centre[0]) == 1.5
    assert path.consensus == 3.125  # one more average: half of the way to the mean of 0.5 and 9
