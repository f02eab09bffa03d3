"""A rank of a user loop between two loops."""

from __future__ import annotations

import torch
from torch import nn

from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategies.averaging import Averaging
from roundelay.user_loop.loop_rank import LoopRank
from roundelay.user_loop.module_learner import ModuleLearner


def test_a_rank_begins_rests_and_leaves() -> None:
    module = nn.Linear(2, 1)
    rank = LoopRank(ModuleLearner(module, torch.optim.SGD(module.parameters(), lr=0.1)), Averaging(), LocalRuntime())
    assert rank.resting
    assert rank.agree(edited=False) is None
    assert rank.agree(edited=True) == 0
    assert rank.begin(3) == 0
    vector = rank.rest()
    assert vector is not None
    assert torch.equal(vector, rank.learner.weights)
    assert rank.begin(2) == 3, "minibatches are numbered on"
    rank.rest()
    rank.leave()
