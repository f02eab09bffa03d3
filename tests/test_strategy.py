"""What the base class gives every strategy."""

from __future__ import annotations

import pytest
import torch

from roundelay.learner import Learner
from roundelay.strategies import ADPSGD, BMUF, STRATEGIES, Averaging, Synchronous
from roundelay.strategy import Asynchronous, Strategy, period_setting


def test_the_setting_of_the_period_is_found() -> None:
    assert [period_setting(kind) for kind in (BMUF, Averaging, Synchronous, ADPSGD)] == ["block", "period", None, None]
    for name in STRATEGIES:
        kind = STRATEGIES[name]
        setting = period_setting(kind)
        assert setting is None or getattr(kind(), setting) >= 1


def test_learners_step_together_or_each_alone() -> None:
    assert [list(group) for group in Strategy().lockstep_groups(3)] == [[0, 1, 2]]
    alone = Asynchronous().lockstep_groups(3)
    assert (len(alone), [tuple(group) for group in alone]) == (3, [(0,), (1,), (2,)])
    assert [tuple(group) for group in alone[1:]] == [(1,), (2,)]
    assert tuple(alone[-1]) == (2,)
    with pytest.raises(IndexError):
        alone[3]


def test_a_strategy_that_serves_says_so() -> None:
    assert ADPSGD().serves_requests
    assert not Synchronous().serves_requests
    learner = Learner(torch.nn.Linear(1, 1))
    with pytest.raises(NotImplementedError, match="Synchronous serves no requests"):
        Synchronous().serve(learner, learner.weights, 1)


def test_to_regroup_is_to_set_up_again_by_default() -> None:
    class Counting(Strategy):
        setups = 0

        def setup(self, learner: Learner) -> None:
            self.setups += 1

    strategy = Counting()
    strategy.regroup(Learner(torch.nn.Linear(1, 1)))
    assert strategy.setups == 1
