"""What learners of a user loop do together, as a learner at its end sees it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundelay.errors import SettingsError
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategies.averaging import Averaging
from roundelay.user_loop.acts import Act, Acts
from roundelay.user_loop.loop_rank import LoopRank
from roundelay.user_loop.module_learner import ModuleLearner


def test_others_are_followed_in_their_order() -> None:
    module = nn.Linear(2, 1)
    rank = LoopRank(ModuleLearner(module, torch.optim.SGD(module.parameters(), lr=0.1)), Averaging(), LocalRuntime())
    rank.member.num_learners, run = 2, rank.runtime.run
    one = Acts(rank.member, rank.agenda)
    rank.learner.index = 1
    other = Acts(rank.member, rank.agenda)

    def announce(acts: Acts, act: Act) -> None:
        rank.learner.index = 0 if acts is one else 1
        run(acts.announce(act))

    announce(one, "mean")
    assert run(other.pending()) == "mean"
    announce(other, "mean")
    announce(one, "step")
    assert not run(one.mean_is_missing()), "nobody accumulates gradients: it waits for nobody"
    assert run(other.pending()) == "step"
    announce(other, "step")
    assert run(other.pending()) is None
    announce(one, "mean")
    announce(other, "mean")
    announce(one, "step")
    with pytest.raises(SettingsError, match=r"calls backward\(\) again, and another learner has taken this step"):
        announce(other, "mean")
    assert other.accumulates
    run(one.end())
    assert not run(other.all_ended())
    run(other.end())
    assert run(other.all_ended())
