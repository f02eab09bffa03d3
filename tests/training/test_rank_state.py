"""What a checkpoint has of a rank can be restored into another one."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundelay.errors import CheckpointError
from roundelay.learner import Learner
from roundelay.strategy import Strategy
from roundelay.training.rank_state import (
    RankState,
    capture_learner,
    capture_random,
    capture_strategy,
    restore_metrics,
    restore_random,
    restore_stateful,
    restore_strategy,
    restore_weights,
)


@dataclass
class Inner(Strategy):
    state: ClassVar[tuple[str, ...]] = ("count",)

    def __post_init__(self) -> None:
        self.count = 0


@dataclass
class Outer(Strategy):
    state: ClassVar[tuple[str, ...]] = ("mean", "inner", "rounds", "later")

    def __post_init__(self) -> None:
        self.mean, self.inner, self.rounds = torch.zeros(2), Inner(), [0]


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def attach(self, learner: Learner) -> None:
        pass

    def state_dict(self) -> dict[str, Tensor]:
        return {"count": torch.tensor(self.count)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.count = int(state["count"])


def make_learner(steps: int = 0, seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    module = nn.Linear(3, 2)
    learner = Learner(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    learner.stateful["counter"] = Counter()
    for _ in range(steps):
        learner.take_snapshot()
        learner.frames = 1
        module(torch.ones(3)).sum().backward()
        learner.collect_grad()
        learner.descend()
    return learner


def captured(learner: Learner) -> RankState:
    state = RankState(10)
    capture_learner(learner, state)
    return state.freeze()


def test_a_learner_continues_as_the_one_that_was_saved() -> None:
    learner, other = make_learner(steps=3), make_learner(seed=1)
    learner.stateful["counter"].load_state_dict({"count": torch.tensor(7)})
    learner.log("staleness", 2.0)
    learner.descent_sum = 0.5
    saved = captured(learner)
    restore_weights(other, [saved])
    restore_stateful(other, saved)
    restore_metrics(other, saved)
    assert torch.equal(other.weights, learner.weights)
    assert all(torch.equal(a, b) for a, b in zip(other.moments(), learner.moments(), strict=True))
    assert other.stateful["counter"].state_dict()["count"] == 7
    assert other.metrics == [("staleness", 2.0)]
    assert other.descent_sum == 0.5


def test_a_copy_does_not_change_with_training() -> None:
    learner = make_learner()
    saved = captured(learner)
    before = saved.tensors["weights"].clone()
    learner.weights.zero_()
    learner.log("staleness", 1.0)
    assert torch.equal(saved.tensors["weights"], before)
    assert saved.state["figures"] == []


def test_several_parts_are_averaged_and_the_learning_rate_may_stay() -> None:
    parts = [captured(make_learner(steps=k, seed=k)) for k in range(3)]
    mean = torch.stack([part.tensors["weights"] for part in parts]).mean(0)
    learner = make_learner()
    assert learner.optimizer is not None
    learner.optimizer.param_groups[0]["lr"] = 0.7
    restore_weights(learner, parts, rates=False)
    assert torch.allclose(learner.weights, mean)
    assert learner.optimizer.param_groups[0]["lr"] == 0.7
    restore_weights(learner, [captured(make_learner())])
    assert learner.optimizer.param_groups[0]["lr"] == 0.1


def test_another_optimizer_is_refused() -> None:
    module = nn.Linear(3, 2)
    other = Learner(module, torch.optim.AdamW(module.parameters()))
    with pytest.raises(CheckpointError, match="has the state of SGD, and the experiment uses AdamW"):
        restore_weights(other, [captured(make_learner(steps=1))])


def test_nested_strategies_are_restored() -> None:
    strategy, other, state = Outer(), Outer(), RankState(10)
    strategy.mean, strategy.rounds, strategy.inner.count = torch.ones(2), [3, 4], 5
    capture_strategy(strategy, state)
    assert sorted(state.tensors) == ["strategy.mean"]
    assert state.state["strategy"] == {"inner": {"count": 5}, "rounds": [3, 4]}  # `later` does not exist yet
    restore_strategy(other, state.freeze())
    assert (other.mean.tolist(), other.rounds, other.inner.count) == ([1.0, 1.0], [3, 4], 5)
    partly = Outer()
    restore_strategy(partly, state, ("mean",))
    assert (partly.mean.tolist(), partly.rounds, partly.inner.count) == ([1.0, 1.0], [0], 0)


@pytest.mark.parametrize("value", [object(), {1: 2}, math.nan])
def test_state_that_json_does_not_keep_is_refused(value: Any) -> None:
    strategy = Outer()
    strategy.rounds = value
    with pytest.raises(CheckpointError, match=r"Outer\.rounds cannot be saved: .*; use a tensor"):
        capture_strategy(strategy, RankState(10))


def test_generators_continue() -> None:
    state = RankState(10)
    capture_random(state)
    state.freeze()
    drawn = (torch.rand(3).tolist(), random.random(), np.random.rand())
    restore_random(state)
    assert (torch.rand(3).tolist(), random.random(), np.random.rand()) == drawn
