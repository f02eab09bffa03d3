"""The server of updates by hand."""

from __future__ import annotations

import pytest

from quadratic_task import walk
from roundelay.strategies import UpdatesASGD


def test_two_pushes_of_updates_by_hand() -> None:
    # rate 1/2, momentum 1/2.  Learner 0 moves by 2: D = 2, w = 1.  Learner 1 by 4: D = 1 + 4, w = 1 + 2.5 = 3.5
    # learner 0, 1 -> 0.5, by -0.5: D = 2.5 - 0.5, w = 4.5; learner 1, 3.5 -> 9.75, by 6.25: D = 7.25, w = 8.125
    path = walk(UpdatesASGD(period=1, rate=0.5, momentum=0.5), [4, 8, 0, 16], 2)
    assert path.weights == {0: [1, 4.5], 1: [3.5, 8.125]}


def test_updates_pile_up_for_a_period_and_the_rest_is_pushed_at_the_end() -> None:
    # learner 0: 0 -> 2 -> 1, pushes 1: w = 1; then 1 -> 2, which is pushed at the end: w = 1 + 1
    assert walk(UpdatesASGD(period=2, rate=1.0), [4, 0, 3], 1).consensus == 2


def test_masgd_is_a_momentum_of_nine_tenths_at_rate_one() -> None:
    # D = 0.9 D + change, w = w + D.  Learner 0 moves by 2: D = 2, w = 2.  Learner 1 by 4: D = 1.8 + 4, w = 7.8
    path = walk(UpdatesASGD(period=1, rate=1.0, momentum=0.9), [4, 8], 2)
    assert path.weights == {0: [2], 1: [pytest.approx(7.8)]}
