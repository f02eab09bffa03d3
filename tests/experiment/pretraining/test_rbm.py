"""Restricted Boltzmann machines: contrastive divergence against enumeration, their optimizer, and its guard."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.experiment.pretraining.rbm import RBM, Visible
from roundelay.experiment.pretraining.rbm_momentum import GuardedMomentum

KINDS: list[Visible] = ["gaussian", "bernoulli"]


def machine(kind: Visible, visible: int = 4, hidden: int = 3) -> RBM:
    """Return an RBM in double precision whose weights and biases all matter."""
    torch.manual_seed(3)
    rbm = RBM(visible, hidden, kind, deviation=0.7).double()
    with torch.no_grad():
        rbm.hidden_bias.normal_()
        rbm.visible_bias.normal_()
    return rbm


def states(count: int) -> Tensor:
    """Return every vector of ``count`` binary units."""
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)), dtype=torch.float64)


def data(kind: Visible, count: int = 1, visible: int = 4) -> Tensor:
    torch.manual_seed(8)
    rows = torch.randn(count, visible, dtype=torch.float64)
    return rows if kind == "gaussian" else torch.sigmoid(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_conditionals_follow_from_the_energy(kind: Visible) -> None:
    rbm, v = machine(kind), data(kind)
    with torch.no_grad():
        h = states(3)
        shares = torch.softmax(-rbm.energy(v.expand(8, 4), h), 0)
        torch.testing.assert_close(rbm.hidden(v)[0], shares @ h)
        if kind == "bernoulli":
            vs = states(4)
            shares = torch.softmax(-rbm.energy(vs, h[5].expand(16, 3)), 0)
            torch.testing.assert_close(rbm.visible(h[5:6])[0], shares @ vs)
        else:  # the energy's minimum, and its curvature 1
            mean = rbm.visible(h[5:6])
            steps = torch.cat([mean, mean + 0.5])
            low, high = rbm.energy(steps, h[5].expand(2, 3))
            assert float(high - low) == pytest.approx(0.5 * 4 * 0.25)


def expected(rbm: RBM, v: Tensor) -> dict[str, Tensor]:
    """Return the mean of CD-1's statistics over every state that the hidden units can be sampled in."""
    total = {name: torch.zeros_like(p) for name, p in rbm.named_parameters()}
    h = rbm.hidden(v)
    for sample in states(3):
        share = (h * sample + (1 - h) * (1 - sample)).prod(1, keepdim=True)  # (N, 1)
        back = rbm.visible(sample.expand(len(v), 3))
        again = rbm.hidden(back)
        total["weight"] += h.T @ (share * v) - again.T @ (share * back)
        total["hidden_bias"] += (share * (h - again)).sum(0)
        total["visible_bias"] += (share * (v - back)).sum(0)
        moments = [x.mean(1, keepdim=True) for x in (v, v.square(), back, back.square())]
        total["spread"] += torch.stack([(share * moment).sum() for moment in moments])
    return {name: x / len(v) for name, x in total.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_are_those_of_enumeration(kind: Visible) -> None:
    rbm, v = machine(kind), data(kind, 5)
    torch.manual_seed(0)
    many, _ = rbm.contrast(v.repeat(40_000, 1))
    with torch.no_grad():
        wanted = expected(rbm, v)
    for name, x in wanted.items():
        torch.testing.assert_close(many[name], x, rtol=0, atol=0.01, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_contrastive_divergence_goes_about_the_way_of_the_likelihood(kind: Visible) -> None:
    # It is biased, but not against the gradient of the log-likelihood, which enumeration gives for binary units.
    if kind == "gaussian":
        pytest.skip("Gaussian units cannot be enumerated")
    rbm = machine(kind)
    v = torch.tensor([[1.0, 0, 1, 0], [1, 1, 1, 0], [0, 0, 1, 1]], dtype=torch.float64)
    vs, hs = states(4), states(3)
    pairs = torch.stack([rbm.energy(vs, h.expand(16, 3)) for h in hs])  # (8, 16)
    free = -torch.logsumexp(-pairs, 0)
    own = torch.stack([free[int((vs == row).all(1).nonzero())] for row in v])
    (own.mean() + torch.logsumexp(-free, 0)).backward()
    with torch.no_grad():
        moves = expected(rbm, v)
    for name in ("weight", "hidden_bias", "visible_bias"):
        uphill = -dict(rbm.named_parameters())[name].grad  # type: ignore[operator]  # backward has made it
        assert torch.cosine_similarity(moves[name].flatten(), uphill.flatten(), dim=0) > 0.5


def train(rbm: RBM, batches: list[Tensor], rate: float, **settings: Any) -> tuple[list[float], GuardedMomentum]:
    optimizer, errors = GuardedMomentum(rbm, rate, **settings), []
    torch.manual_seed(0)
    for batch in batches:
        statistics, error = rbm.contrast(batch)
        for name, p in rbm.named_parameters():
            p.grad = -statistics[name]
        optimizer.step()
        errors.append(error)
    return errors, optimizer


def frames(count: int, scale: float = 1.0) -> list[Tensor]:
    """Return minibatches that lie near a plane."""
    generator = torch.Generator().manual_seed(1)
    plane = torch.randn(3, 20, generator=generator) / 3**0.5
    return [scale * torch.randn(50, 3, generator=generator) @ plane for _ in range(count)]


def test_reconstruction_gets_better() -> None:
    torch.manual_seed(0)
    rbm = RBM(20, 30, "gaussian", deviation=0.01)
    errors, optimizer = train(rbm, frames(200), 0.05)
    assert sum(errors[-10:]) < 0.5 * sum(errors[:10])
    assert optimizer.param_groups[0]["guarded"] == 0
    above = RBM(30, 30, "bernoulli")
    hidden = [rbm.hidden(batch).detach() for batch in frames(200)]
    above.start_visible(torch.cat(hidden).mean(0))
    errors, _ = train(above, hidden, 0.2)
    assert sum(errors[-10:]) < 0.5 * sum(errors[:10])


def test_the_guard_holds_an_explosion_back() -> None:
    torch.manual_seed(0)
    rbm, free = RBM(20, 30, "gaussian"), RBM(20, 30, "gaussian")
    free.load_state_dict(rbm.state_dict())
    noted: list[tuple[str, float]] = []
    batches = frames(60)
    errors, guarded = train(rbm, batches, 0.5)
    assert guarded.param_groups[0]["guarded"] > 0
    assert max(errors) < 1e3
    wild, _ = train(free, batches, 0.5, ratio=float("inf"))
    assert not wild[-1] < 1e3
    guarded.note = lambda name, value: noted.append((name, value))
    with torch.no_grad():
        rbm.weight.mul_(100.0)
    before = rbm.weight.clone()
    statistics, _ = rbm.contrast(batches[0])
    for name, p in rbm.named_parameters():
        p.grad = -statistics[name]
    guarded.step()
    ((name, ratio),) = noted
    assert name == "guarded"
    torch.testing.assert_close(rbm.weight, before / ratio)  # shrunk by the ratio, no step taken
    assert float(guarded.state[rbm.weight]["change"].abs().max()) == 0.0


@pytest.mark.parametrize(("scale", "acts"), [(1.0, False), (0.05, True)])
def test_the_guard_acts_where_inputs_are_not_normalised(*, scale: float, acts: bool) -> None:
    torch.manual_seed(0)
    _, optimizer = train(RBM(20, 30, "gaussian"), frames(60, scale), 0.02)
    assert (optimizer.param_groups[0]["guarded"] > 0) is acts


def test_becomes_a_layer_for_inputs_as_they_come() -> None:
    rbm, v = machine("gaussian"), data("gaussian", 6) * 3 + 2
    mean, deviation = v.mean(0), v.std(0)
    weight, bias = rbm.affine(mean, deviation)
    torch.testing.assert_close(torch.sigmoid(v @ weight.T + bias), rbm.hidden((v - mean) / deviation).detach())
