"""The flat vector: layout, buffers, optimizers, narrower types."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundelay.errors import SettingsError
from roundelay.learner import ALIGNMENT_BYTES, Learner
from roundelay.runtimes.blocking import run_blocking
from roundelay.runtimes.single_learner import LocalRuntime


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def take_gradient(learner: Learner, seed: int = 1) -> None:
    learner.take_snapshot()
    learner.frames = 1
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    learner.module(x).square().mean().backward()
    learner.collect_grad()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
    ],
)
def test_any_optimizer_steps_as_it_does_by_itself(make: object) -> None:
    plain, ours = model(), model()
    optimizer = make(plain.parameters())  # type: ignore[operator]  # a lambda of the parametrisation
    learner = Learner(ours, make(ours.parameters()))  # type: ignore[operator]
    for step in range(5):
        take_gradient(learner, step)
        learner.descend()
        optimizer.zero_grad()
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        plain(x).square().mean().backward()
        optimizer.step()
    learner.take_snapshot()
    for mine, theirs in zip(ours.state_dict().values(), plain.state_dict().values(), strict=True):
        if mine.is_floating_point() and mine.ndim == 1 and mine.shape == (5,):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)  # statistics: added as a difference
        else:
            assert torch.equal(mine, theirs)


def test_parameter_groups_keep_their_rates_under_a_schedule() -> None:
    module = model()
    groups: list[dict[str, Any]] = [{"params": module[0].parameters(), "lr": 0.5}, {"params": module[3].parameters()}]
    groups.append({"params": module[1].parameters(), "lr": 0.0})
    learner = Learner(module, torch.optim.SGD(groups, lr=0.1))
    take_gradient(learner)
    before, gradient = learner.weights.clone(), learner.grad.clone()
    learner.lr_factor = 0.5
    learner.descend()
    moved = before - learner.weights
    rates = {"0": 0.25, "1": 0.0, "3": 0.05}
    for place in learner.slots:
        if place.part.start < learner.tail:
            expected = rates[place.name[0]] * place.view(gradient)
            torch.testing.assert_close(place.view(moved), expected, rtol=1e-5, atol=1e-7)
    assert [group["lr"] for group in learner.optimizer.param_groups] == [0.5, 0.1, 0.0]  # type: ignore[union-attr]


def test_clipping_leaves_statistics_alone() -> None:
    module = model()
    learner = Learner(module, torch.optim.SGD(module.parameters(), lr=1.0), clip=0.01)
    take_gradient(learner)
    change = learner.grad[learner.tail :].clone()
    learner.clip_grad_(learner.grad)
    assert torch.linalg.vector_norm(learner.grad[: learner.tail]) == pytest.approx(0.01, rel=1e-4)
    assert torch.equal(learner.grad[learner.tail :], change)


def test_statistics_change_only_with_the_step() -> None:
    module = model()
    learner = Learner(module, torch.optim.SGD(module.parameters(), lr=0.1))
    before = learner.weights.clone()
    take_gradient(learner)
    assert torch.equal(learner.weights, before)
    assert bool(learner.grad[learner.tail :].abs().sum() > 0)
    learner.descend()
    mean = next(place for place in learner.slots if place.name == "1.running_mean")
    reference = model()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    reference(x)
    torch.testing.assert_close(mean.view(learner.weights), reference[1].running_mean)


def test_gradients_that_left_their_place_are_found() -> None:
    module = model()
    learner = Learner(module, torch.optim.SGD(module.parameters(), lr=0.1))
    take_gradient(learner)
    expected = learner.grad.clone()
    learner.take_snapshot()
    learner.optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    learner.module(x).square().mean().backward()
    learner.collect_grad()
    assert torch.equal(learner.grad[: learner.tail], expected[: learner.tail])


def test_narrow_parameters_train_over_a_float32_vector() -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 1).to(torch.bfloat16)
    learner = Learner(module, torch.optim.SGD(module.parameters(), lr=1e-3))
    start = learner.weights.clone()
    assert learner.weights.dtype == torch.float32
    x = torch.ones(4, 3, dtype=torch.bfloat16)
    for _ in range(10):
        learner.take_snapshot()
        learner.frames = 1
        (module(x) - 3).square().mean().backward()
        learner.collect_grad()
        learner.descend()
    assert module.weight.dtype == torch.bfloat16
    steps = (learner.weights - start).abs()[:3]
    assert bool((steps > 0).all())  # steps too small for bfloat16 add up in the master vector
    learner.take_snapshot()
    assert torch.equal(module.weight.detach().float().view(-1), learner.weights[:3].to(torch.bfloat16).float())


def test_lstm_trains_through_views() -> None:
    def losses(ours: bool) -> list[float]:
        torch.manual_seed(0)
        lstm = nn.LSTM(4, 6, num_layers=2, bidirectional=True)
        optimizer = torch.optim.SGD(lstm.parameters(), lr=0.5)
        learner = Learner(lstm, optimizer) if ours else None
        x, found = torch.randn(7, 2, 4), []
        for _ in range(4):
            if learner is not None:
                learner.take_snapshot()
                learner.frames = 1
            else:
                optimizer.zero_grad()
            loss = (lstm(x)[0] - 0.3).square().mean()
            loss.backward()
            if learner is not None:
                learner.collect_grad()
                learner.descend()
            else:
                optimizer.step()
            found.append(float(loss.detach()))
        return found

    assert losses(ours=True) == losses(ours=False)


def test_aliased_snapshot_gives_the_same_weights() -> None:
    def train(one: bool) -> Tensor:
        module = model()
        learner = Learner(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
        learner.alias_snapshot(one=one)
        assert (learner.snapshot is learner.weights) == one
        for step in range(5):
            take_gradient(learner, step)
            learner.descend()
        return learner.weights

    assert torch.equal(train(True), train(False))


def test_moments_are_made_where_there_are_none_and_do_not_change_training() -> None:
    def train(ask: bool, make: type[torch.optim.Optimizer]) -> Tensor:
        module = model()
        optimizer = make(module.parameters(), lr=0.01)  # type: ignore[call-arg]  # all have lr
        learner = Learner(module, optimizer)
        if ask:
            assert all(float(moment.abs().sum()) == 0 for moment in learner.moments())
        for step in range(3):
            take_gradient(learner, step)
            learner.descend()
        return learner.weights

    assert torch.equal(train(True, torch.optim.AdamW), train(False, torch.optim.AdamW))


def test_parts_cover_the_vector_from_its_end() -> None:
    learner = Learner(model(), None)
    for bucket in (1, 100, 10**9):
        parts = learner.buckets(bucket)
        assert sum(part.stop - part.start for part in parts) == learner.weights.numel()
        assert all(a.start == b.stop for a, b in itertools.pairwise(parts[:-1]))
        assert parts[-1] == slice(learner.tail, learner.weights.numel())
        assert parts[-2].start == 0
    assert len(learner.buckets(1)) == 7  # six parameters, one tail


def test_cuts_lie_between_parameters() -> None:
    learner = Learner(model(), None)
    starts = {place.part.start for place in learner.slots} | {learner.weights.numel()}
    for pieces in (1, 2, 3):
        cuts = learner.even_parts(pieces)
        assert len(cuts) == pieces
        assert cuts[0].start == 0
        assert cuts[-1].stop == learner.weights.numel()
        assert all(cut.stop in starts for cut in cuts)


def test_a_step_on_a_part_moves_nothing_else() -> None:
    module = model()
    learner = Learner(module, torch.optim.SGD(module.parameters(), lr=0.1))
    take_gradient(learner)
    first, second = learner.even_parts(2)
    before = learner.weights.clone()
    learner.descend(learner.grad, part=second)
    assert torch.equal(learner.weights[first], before[first])
    assert not torch.equal(learner.weights[second], before[second])


def test_announced_parts_come_in_order_and_hold_the_gradient() -> None:
    module = model()
    learner = Learner(module, torch.optim.SGD(module.parameters(), lr=0.1))
    take_gradient(learner)
    expected, told = learner.grad.clone(), []
    learner.take_snapshot()
    parts = learner.buckets(1)
    finish = learner.hook_buckets(parts, lambda part: told.append((part, learner.grad[part].clone())))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    learner.module(x).square().mean().backward()
    early = len(told)
    learner.collect_grad()
    finish()
    assert early == len(parts) - 1  # all but the statistics were told of during the backward pass
    assert [part for part, _ in told] == parts
    for part, gradient in told[:-1]:
        assert torch.equal(gradient, expected[part])
    take_gradient(learner)  # the hooks are gone
    assert len(told) == len(parts)


def test_parameters_lie_on_cache_lines_and_buffers_behind_them() -> None:
    learner = Learner(model(), None)
    assert all(place.part.start * 4 % ALIGNMENT_BYTES == 0 for place in learner.slots)
    assert [place.name for place in learner.slots][-2:] == ["1.running_mean", "1.running_var"]
    assert all((place.part.start >= learner.tail) == ("running" in place.name) for place in learner.slots)
    assert [tuple(c.shape) for c in learner.constants] == [()]  # num_batches_tracked


def test_tied_parameters_have_one_place_and_frozen_ones_none() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.c = nn.Linear(4, 4)
            self.c.requires_grad_(False)

    learner = Learner(Tied(), None)
    assert [place.name for place in learner.slots] == ["a.weight", "a.bias", "b.bias"]
    assert [tuple(c.shape) for c in learner.constants] == [(4, 4), (4,)]
    assert learner.module.b.weight.data_ptr() == learner.module.a.weight.data_ptr()  # type: ignore[union-attr, operator]


def test_moving_towards_others_from_the_snapshot() -> None:
    learner = Learner(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)))
    run_blocking(LocalRuntime().rendezvous(learner, {}, lambda reports, safe: {}))
    learner.take_snapshot()
    start = learner.weights.clone()
    learner.snapshot[learner.tail :] += 5.0  # as a forward pass does
    learner.weights += 1.0  # as others do
    theirs = torch.full_like(start, 3.0)
    added = learner.move_towards(theirs, 0.25, from_snapshot=True)
    assert torch.equal(added, 0.25 * (theirs - start))
    assert torch.equal(learner.weights, start + 1.0 + added)
    added = learner.move_towards(theirs, 0.5)
    assert torch.allclose(learner.weights, theirs - added)


def test_nothing_to_train_is_an_error() -> None:
    module = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(SettingsError, match="nothing to train"):
        Learner(module, None)


class Moving(nn.Module):
    """Lays its second weight out anew in each forward pass, as recurrent layers do on some devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.second.weight.data = self.second.weight.data.clone()
        y: Tensor = self.second(self.first(x))
        return y


@pytest.mark.parametrize("one", [True, False])
def test_a_parameter_that_the_forward_pass_moves_is_taken_back(one: bool) -> None:
    model = Moving()
    learner = Learner(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.alias_snapshot(one=one)
    learner.frames = 1
    for _ in range(2):
        learner.weights.add_(1.0)  # as other learners' weights would
        learner.take_snapshot()
        model(torch.ones(3, 2)).sum().backward()
        learner.collect_grad()
        learner.descend()
        learner.take_snapshot()
        slot = next(place for place in learner.slots if place.name == "second.weight")
        assert torch.equal(slot.view(learner.weights), model.second.weight)


def test_a_model_on_two_devices_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(SettingsError, match="the model is on cpu and meta; a learner needs all of it on one device"):
        Learner(model)
