"""What learners of a user loop do together, as a learner at its end sees it."""

from __future__ import annotations

import torch
from torch import nn

from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategies.averaging import Averaging
from roundelay.user_loop.acts import Acts
from roundelay.user_loop.loop_rank import LoopRank
from roundelay.user_loop.module_learner import ModuleLearner


def test_others_are_followed_in_their_order() -> None:
    module = nn.Linear(2, 1)
    rank = LoopRank(ModuleLearner(module, torch.optim.SGD(module.parameters(), lr=0.1)), Averaging(), LocalRuntime())
    rank.member.num_learners, run = 2, rank.runtime.run
    one, other = Acts(rank.member, rank.agenda), Acts(rank.member, rank.agenda)
    run(one.announce("mean"))
    run(one.announce("step"))
    run(one.end())
    assert run(other.pending()) == "mean"
    run(other.announce("mean"))
    assert run(other.pending()) == "step"
    run(other.announce("step"))
    assert run(other.pending()) is None
    assert not run(other.all_ended())
    run(other.end())
    assert run(other.all_ended())
