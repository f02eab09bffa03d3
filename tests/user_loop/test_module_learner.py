"""The learner of a user loop: whatever is done to the model counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from roundelay.errors import SettingsError
from roundelay.user_loop.module_learner import ModuleLearner


def made(*, copied: bool = False, module: nn.Module | None = None) -> tuple[Any, ModuleLearner]:
    torch.manual_seed(0)
    module = module if module is not None else nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    learner = ModuleLearner(module, torch.optim.SGD(module.parameters(), lr=0.1), copied=copied)
    learner.alias_snapshot(one=not copied)
    learner.take_snapshot()
    learner.frames = 1
    return module, learner


def step(module: nn.Module, learner: ModuleLearner) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    module(torch.ones(4, 3)).square().sum().backward()
    learner.collect_grad()
    learner.descend()
    learner.take_snapshot()


@pytest.mark.parametrize("copied", [False, True])
def test_edits_count_and_steps_are_the_plain_ones(copied: bool) -> None:
    module, learner = made(copied=copied)
    plain: Any = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    plain.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        step(module, learner)
        optimizer.zero_grad()
        plain(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            for each in module, plain:
                each[0].weight.clamp_(-0.2, 0.2)
    learner.heal()
    assert torch.allclose(learner.weights[:6].view(2, 3), plain[0].weight, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(module.buffers(), plain.buffers(), strict=True))


@pytest.mark.parametrize("copied", [False, True])
def test_tensors_that_were_assigned_anew_come_back_into_the_vector(copied: bool) -> None:
    module, learner = made(copied=copied)
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm1d)
    module[0].weight.data = torch.full((2, 3), 7.0)
    buffer = norm.running_mean
    norm.running_mean = torch.full((2,), 3.0)
    learner.heal()
    assert norm.running_mean is buffer
    assert learner.weights[:6].tolist() == [7.0] * 6
    assert learner.snapshot[learner.tail :][:2].tolist() == [3.0, 3.0]
    module[0].weight = nn.Parameter(torch.zeros(2, 3))
    with pytest.raises(SettingsError, match=r"0.weight is no longer the tensor that the optimizer trains"):
        learner.heal()


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    module: Any = nn.ModuleDict({"used": nn.Linear(2, 1, bias=False), "unused": nn.Linear(2, 1, bias=False)})
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.5)
    learner = ModuleLearner(module, optimizer)
    learner.alias_snapshot(one=True)
    before = module["unused"].weight.detach().clone()
    module["used"](torch.ones(1, 2)).sum().backward()
    learner.frames, learner._with_gradient = 1, {0}
    learner.collect_grad()
    learner.descend(learner.grad)
    assert torch.equal(module["unused"].weight, before)
    assert not torch.equal(learner.grad[:2], torch.zeros(2))


def test_what_cannot_be_trained_is_named() -> None:
    module, _ = made()
    with pytest.raises(SettingsError, match="0.weight is trained by another optimizer that was joined"):
        ModuleLearner(module, torch.optim.SGD(module.parameters(), lr=0.1))
    other = nn.Linear(2, 1)
    with pytest.raises(SettingsError, match="LBFGS evaluates the loss several times a step"):
        ModuleLearner(other, torch.optim.LBFGS(other.parameters()))
    with pytest.raises(SettingsError, match="none of the model's parameters"):
        ModuleLearner(other, torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))


def test_released_tensors_have_their_own_memory() -> None:
    module, learner = made()
    learner.release()
    assert module[0].weight.untyped_storage().nbytes() == 24
    ModuleLearner(module, torch.optim.SGD(module.parameters(), lr=0.1))
