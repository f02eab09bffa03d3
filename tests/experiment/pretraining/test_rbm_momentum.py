"""The optimizer of restricted Boltzmann machines and its guard."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.experiment.pretraining.rbm import RBM
from roundelay.experiment.pretraining.rbm_momentum import GuardedMomentum, MomentumRamp


def test_the_optimizer_is_kaldis_recursion() -> None:
    rbm = RBM(2, 2, "bernoulli")
    ramp = MomentumRamp(first=0.5, last=0.9, steps=2, step_frames=100)
    assert [ramp(each) for each in (0, 99, 100, 200, 1000)] == pytest.approx([0.5, 0.5, 0.3, 0.1, 0.1])
    optimizer = GuardedMomentum(rbm, 0.4, l2=0.1)
    w, change = rbm.weight.detach().clone(), torch.zeros(2, 2)
    for position, statistics in ((0, 1.0), (100, -2.0), (100, 0.5)):
        for p in rbm.parameters():
            p.grad = torch.full_like(p, -statistics)
        rate = 0.4 * ramp(position)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        change = (1 - ramp(position)) * change + rate * (statistics - 0.1 * w)
        w = w + change
    torch.testing.assert_close(rbm.weight.detach(), w)
    assert torch.equal(rbm.spread, torch.zeros(4))


def test_kaldis_default_with_bug_takes_steps_five_times_as_long_at_first() -> None:
    """Momentum 0.9 from the second minibatch, at a rate for the momentum of the ramp: what the page says of it."""
    ramp = MomentumRamp(first=0.5, last=0.9, steps=2, step_frames=100)
    for position, times in ((0, 5.0), (1000, 1.0)):
        ours = theirs = 0.0
        for _ in range(300):  # of a constant gradient
            ours = (1 - ramp(position)) * ours + 0.4 * ramp(position)
            theirs = 0.9 * theirs + 0.4 * ramp(position)
        assert theirs / ours == pytest.approx(times)


def test_the_rate_recovers_at_the_next_step_of_the_ramp() -> None:
    rbm = RBM(3, 3, "gaussian")
    optimizer = GuardedMomentum(rbm, 0.1)
    for p in rbm.parameters():
        p.grad = torch.zeros_like(p)
    rbm.spread.grad = -torch.tensor([0.0, 1.0, 0.0, 9.0])
    optimizer.step()
    assert optimizer.param_groups[0]["shrunk"] == 0.9
    rbm.spread.grad = -torch.tensor([0.0, 1.0, 0.0, 1.0])
    optimizer.step()
    assert optimizer.param_groups[0]["shrunk"] == 0.9
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    optimizer.step()
    assert optimizer.param_groups[0]["shrunk"] == 1.0


@pytest.mark.parametrize("wrong", [{"first": 0.9, "last": 0.5}, {"last": 1.0}, {"steps": 0}, {"step_frames": 0.0}])
def test_ramps_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        MomentumRamp(**wrong)
