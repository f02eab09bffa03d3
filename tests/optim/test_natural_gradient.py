"""Natural gradients: the layers, and every strategy with them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import roundelay
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.learner import Learner
from roundelay.models import MODELS, build_model
from roundelay.optim.natural_gradient import NaturalGradient, NaturalGradientSettings, precondition
from roundelay.optim.online_fisher import OnlineFisher
from roundelay.strategies import STRATEGIES, Averaging
from roundelay.strategy import Strategy
from roundelay.training.loop import Job
from stopped_simulations import BY_FRAMES, Stopped, run_in
from strategy_cases import CASES, fitting, run_simulated
from tiny_jobs import sgd, tiny_job

SMALL = NaturalGradientSettings(rank_in=3, rank_out=3)
PLAIN = NaturalGradientSettings(alpha=1e12, max_change_per_sample=0.0)
"""So much smoothing that nothing is left of the Fisher matrix."""


def uneven(rows: int, dim: int, seed: int = 0) -> Tensor:
    """Rows that spread a hundred times further in some directions than in others."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(9)))[0]
    made: Tensor = torch.randn(rows, dim, generator=generator) * torch.logspace(0, -2, dim) @ turn
    return made


# -- layers -----------------------------------------------------------------------------------------------------------

CONVOLUTIONS: dict[str, tuple[nn.Module, Tensor]] = {
    "linear": (nn.Linear(6, 5), torch.randn(7, 6)),
    "linear over frames": (nn.Linear(6, 5, bias=False), torch.randn(3, 7, 6)),
    "conv1d": (nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), torch.randn(2, 3, 11)),
    "conv1d, same": (nn.Conv1d(3, 4, 4, padding="same", dilation=2, bias=False), torch.randn(2, 3, 11)),
    "conv2d": (nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(0, 1)), torch.randn(2, 3, 8, 9)),
    "conv2d, reflected": (nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), torch.randn(2, 3, 8, 9)),
    "conv2d in groups": (nn.Conv2d(6, 4, 3, groups=2), torch.randn(2, 6, 8, 9)),
    "depthwise": (nn.Conv1d(4, 4, 5, groups=4, padding=2), torch.randn(2, 4, 9)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_is_the_plain_gradient_with_much_smoothing(name: str) -> None:
    module, x = CONVOLUTIONS[name]
    plain, other = copy.deepcopy(module), copy.deepcopy(module)
    natural = precondition(other, torch.optim.SGD(other.parameters(), 0.1), PLAIN)
    for step in range(3):
        one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, z = plain(one), other(two)
        torch.testing.assert_close(z, y)
        weights = torch.randn_like(y)
        (y * weights).mean().backward()
        (z * weights).mean().backward()
        assert one.grad is not None
        torch.testing.assert_close(two.grad, one.grad)
        for (key, mine), theirs in zip(other.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6, msg=f"{key} in step {step}")
        plain.zero_grad()
        other.zero_grad()
    assert all(fisher.started for fisher in natural.layers[""].sides.values()) or name == "depthwise"


def test_is_what_one_gets_from_both_matrices_by_hand() -> None:
    torch.manual_seed(3)
    layer = nn.Linear(4, 3)
    natural = precondition(layer, torch.optim.SGD(layer.parameters(), 0.1), SMALL)
    sides = {side: OnlineFisher(fisher.settings) for side, fisher in natural.layers[""].sides.items()}
    for seed in range(5):
        x, target = uneven(16, 4, seed), uneven(16, 3, seed + 100)
        layer.zero_grad()
        y = layer(x)
        y.retain_grad()
        functional.mse_loss(y, target).backward()
        assert y.grad is not None
        ones, scale_in = sides["in"].precondition(torch.cat([x, torch.ones(16, 1)], 1))
        slopes, scale_out = sides["out"].precondition(16 * y.grad)
        both = scale_in * scale_out / 16 * slopes.T @ ones
        torch.testing.assert_close(layer.weight.grad, both[:, :4])
        torch.testing.assert_close(layer.bias.grad, both[:, 4])


def test_many_uses_of_a_layer_make_one_gradient() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    once = copy.deepcopy(layer)
    for each in (layer, once):
        precondition(each, torch.optim.SGD(each.parameters(), 0.1), SMALL)
    x = torch.randn(6, 4)
    parts = layer(x[:2]).sin().sum() + layer(x[2:]).sin().sum()
    parts.backward()
    once(x).sin().sum().backward()
    torch.testing.assert_close(layer.weight.grad, once.weight.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(layer.bias.grad, once.bias.grad, rtol=1e-4, atol=1e-6)


def test_a_weight_that_is_used_elsewhere_keeps_that_part_of_its_gradient() -> None:
    layer = nn.Linear(3, 3)
    precondition(layer, torch.optim.SGD(layer.parameters(), 0.1), SMALL)
    (0 * layer(torch.randn(5, 3)).sum() + layer.weight.sum()).backward()
    torch.testing.assert_close(layer.weight.grad, torch.ones(3, 3))


def test_several_backward_passes_add_up_and_none_is_left_over() -> None:
    layer = nn.Linear(3, 2)
    natural = precondition(layer, torch.optim.SGD(layer.parameters(), 0.1), PLAIN)
    x = torch.randn(5, 3)
    for _ in range(2):
        layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, 2 * x.sum(0).expand(2, 3), rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        layer(x)
    assert natural.layers[""].passes == {}


def _twins(*, bias: bool = True) -> tuple[nn.Linear, nn.Linear, NaturalGradient]:
    """Return two equal preconditioned layers, and the preconditioner of the first."""
    torch.manual_seed(2)
    layer = nn.Linear(4, 3, bias=bias)
    other = copy.deepcopy(layer)
    natural = [precondition(each, torch.optim.SGD(each.parameters(), 0.1), SMALL) for each in (layer, other)]
    return layer, other, natural[0]


def _gradients(layer: nn.Linear, x: Tensor) -> list[Tensor | None]:
    """Return the gradients of one minibatch with a penalty of the weights."""
    layer.zero_grad()
    (layer(x).square().mean() + 0.1 * layer.weight.square().sum()).backward()
    return [parameter.grad for parameter in layer.parameters()]


@pytest.mark.parametrize("bias", [True, False])
def test_a_gradient_of_the_input_alone_leaves_nothing_behind(*, bias: bool) -> None:
    layer, other, natural = _twins(bias=bias)
    x = torch.randn(5, 4, requires_grad=True)
    torch.autograd.grad(layer(x).square().sum(), [x])
    assert natural.layers[""].passes == {}
    assert not natural.layers[""].sides["in"].started
    torch.testing.assert_close(_gradients(layer, x.detach()), _gradients(other, x.detach()), rtol=0, atol=0)


def test_a_gradient_of_the_weight_alone_leaves_none_for_the_bias() -> None:
    layer, _, natural = _twins()
    torch.autograd.grad(layer(torch.randn(5, 4)).square().sum(), [layer.weight])
    assert natural.layers[""].passes == {}
    layer.bias.sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.ones(3), rtol=0, atol=0)


def test_a_backward_pass_that_fails_leaves_nothing_behind() -> None:
    layer, plain = nn.Linear(4, 3), nn.Linear(4, 3)
    plain.load_state_dict(layer.state_dict())
    natural = precondition(layer, torch.optim.SGD(layer.parameters(), 0.1), PLAIN)
    x = torch.randn(5, 4, requires_grad=True)
    middle = layer(x)
    middle.register_hook(_fail)
    with pytest.raises(ArithmeticError):
        (middle.sum() + layer(2 * x).sum()).backward()
    torch.testing.assert_close(_gradients(layer, x), _gradients(plain, x), rtol=1e-3, atol=1e-5)
    assert natural.layers[""].passes == {}


def _fail(_: Tensor) -> None:
    raise ArithmeticError


def test_a_backward_pass_inside_another_has_uses_of_its_own() -> None:
    layer, plain = nn.Linear(4, 3), nn.Linear(4, 3)
    plain.load_state_dict(layer.state_dict())
    natural = precondition(layer, torch.optim.SGD(layer.parameters(), 0.1), PLAIN)
    x, y = torch.randn(5, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    for each in (layer, plain):
        inner = torch.utils.checkpoint.checkpoint(each, x, use_reentrant=True)
        (each(y).square().mean() + inner.square().mean() + each(inner @ torch.ones(3, 4)).mean()).backward()
    torch.testing.assert_close(layer.weight.grad, plain.weight.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad, rtol=1e-3, atol=1e-5)
    assert natural.layers[""].passes == {}


def test_no_row_moves_a_layer_further_than_allowed() -> None:
    def moved(rate: float, factor: float = 1.0) -> float:
        torch.manual_seed(0)
        layer = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(layer.parameters(), rate)
        precondition(layer, optimizer, NaturalGradientSettings(rank_in=2, rank_out=2, max_change_per_sample=0.01))
        Learner(layer, optimizer).lr_factor = factor  # a learner that is gone leaves the rate alone
        learner = Learner(layer, optimizer)
        learner.lr_factor = factor
        (100 * layer(torch.randn(8, 4)).square().sum()).backward()
        assert layer.weight.grad is not None
        return rate * factor * float(torch.linalg.vector_norm(layer.weight.grad))

    assert moved(1.0) <= 8 * 0.01 * (1 + 1e-5)
    assert moved(1.0) == pytest.approx(moved(50.0), rel=1e-4)  # the bound holds in both
    assert moved(1.0, factor=1e-3) == pytest.approx(moved(1e-3), rel=1e-4)
    assert moved(1e-6) == pytest.approx(moved(1e-5) / 10, rel=1e-4)  # and in neither


def test_a_copied_module_is_preconditioned_by_factors_of_its_own() -> None:
    layer = nn.Linear(4, 3)
    precondition(layer, torch.optim.SGD(layer.parameters(), 0.1), SMALL)
    layer(torch.randn(8, 4)).sum().backward()
    other = copy.deepcopy(layer)
    layer.zero_grad()
    for each in (layer, other):
        each(uneven(8, 4, 5)).square().sum().backward()
    torch.testing.assert_close(other.weight.grad, layer.weight.grad, rtol=0, atol=0)
    assert _natural(other).layers[""].module is other


def _natural(module: nn.Module) -> NaturalGradient:
    keepers: Any = module.roundelay_stateful
    natural: NaturalGradient = keepers["natural_gradient"]
    return natural


def test_chooses_layers_by_name() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3), nn.Linear(3, 2))
    natural = precondition(model, torch.optim.SGD(model.parameters(), 0.1), NaturalGradientSettings(layers=["2"]))
    assert list(natural.layers) == ["2"]
    with pytest.raises(SettingsError, match="already"):
        precondition(model, torch.optim.SGD(model.parameters(), 0.1))
    other, lstm = nn.Sequential(nn.Linear(2, 2)), nn.LSTM(2, 2)
    with pytest.raises(SettingsError, match=r"unknown 'out\*'"):
        precondition(other, torch.optim.SGD(other.parameters(), 0.1), NaturalGradientSettings(layers=["out*"]))
    with pytest.raises(SettingsError, match="no trained Linear.*linear_lstm"):
        precondition(lstm, torch.optim.SGD(lstm.parameters(), 0.1))


def test_a_layer_that_is_passed_over_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(3):
        model = nn.ModuleDict({"front": nn.Linear(3, 3), "memory": nn.LSTM(3, 3)})
        precondition(model, torch.optim.SGD(model.parameters(), 0.1))
    assert caplog.text.count("memory keeps its plain gradient") == 1


@pytest.mark.parametrize("wrong", [{"rank_in": 0}, {"update_period": 0}, {"num_samples_history": 0.0}, {"alpha": -1.0}])
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        NaturalGradientSettings(**wrong)


def test_converges_faster_where_directions_differ_much() -> None:
    def loss_after(settings: NaturalGradientSettings | None) -> float:
        torch.manual_seed(0)
        layer = nn.Linear(20, 8)
        target = nn.Linear(20, 8)
        optimizer = torch.optim.SGD(layer.parameters(), lr=2.0)
        if settings is not None:
            precondition(layer, optimizer, settings)
        for seed in range(300):
            optimizer.zero_grad()
            x = uneven(64, 20, seed)
            loss = functional.mse_loss(layer(x), target(x).detach())
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    plain, natural = loss_after(None), loss_after(NaturalGradientSettings(rank_in=10, rank_out=4, alpha=1.0))
    assert natural < 0.5 * plain


@pytest.mark.parametrize("name", MODELS)
def test_every_acoustic_model_can_have_it(name: str) -> None:
    torch.manual_seed(0)
    model = build_model({"name": name, "preset": "tiny"}, 24, 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    natural = precondition(model, optimizer, SMALL)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, model.left + 12 + model.right, 24)
        functional.cross_entropy(model(x).flatten(0, 1), torch.arange(48) % 7).backward()
        optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    idle = [each for each, layer in natural.layers.items() if not layer.sides["in"].started]
    assert idle == []


# -- strategies -------------------------------------------------------------------------------------------------------


def natural_job(strategy: Strategy, **settings: Any) -> Job:
    plain = sgd(0.1)

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        made = plain(module)
        precondition(module, made, SMALL)
        return made

    return tiny_job(strategy, optimizer=optimizer, **settings)


@pytest.mark.parametrize("name", STRATEGIES)
def test_learns_under_every_strategy_and_repeats_to_the_bit(name: str) -> None:
    strategy = CASES[name]()
    learners = fitting(strategy, 4)
    one, other = (run_simulated(natural_job(CASES[name](), minibatches=60), learners) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.weights, other.weights, strict=True))
    assert one.events == other.events
    losses = [event["loss"] for event in one.events if event["event"] == "evaluate"]
    assert losses[-1] < losses[0]
    plain = run_simulated(tiny_job(CASES[name](), minibatches=60, optimizer=sgd(0.1)), learners)
    assert not torch.allclose(one.consensus[0], plain.consensus[0])


def test_factors_are_private_to_a_learner() -> None:
    ran = run_simulated(natural_job(Averaging(period=2)), 3)
    assert ran.outcome is not None
    factors = [training.learner.stateful["natural_gradient"].state_dict() for training in ran.outcome.trainings]
    assert len(factors[0]) == 16  # two layers, two sides, four tensors
    assert not torch.equal(factors[0]["0/in/w"], factors[1]["0/in/w"])


def test_resuming_equals_never_having_stopped(tmp_path: Path) -> None:
    def job() -> Job:
        made = natural_job(Averaging(period=2), budget={"evaluate_every": 17, "checkpoint_every": 7})
        made.checkpoint = BY_FRAMES
        return made

    through, stopped = tmp_path / "through", tmp_path / "stopped"
    through.mkdir()
    stopped.mkdir()
    expected = run_in(through, job(), 3)
    with pytest.raises(Stopped):
        run_in(stopped, job(), 3, stop=45)
    again = run_in(stopped, job(), 3)
    assert torch.equal(again.consensus, expected.consensus)
    for one, other in zip(again.trainings, expected.trainings, strict=True):
        mine, theirs = (training.learner.stateful["natural_gradient"].state_dict() for training in (one, other))
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_parts_of_the_gradient_are_final_before_they_are_sent() -> None:
    whole, parts = (run_simulated(natural_job(CASES[name]()), 3) for name in ("synchronous", "synchronous in parts"))
    assert torch.equal(whole.consensus[0], parts.consensus[0])


def test_a_joined_loop_is_preconditioned() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    natural = precondition(model, optimizer, SMALL)
    learner = roundelay.join(model, optimizer, roundelay.Synchronous())
    for x in learner.share([torch.randn(8, 3) for _ in range(5)]):
        with learner.minibatch():
            model(x).square().mean().backward()
    learner.close()
    assert natural.layers[""].sides["in"].updates == 5


def test_the_experiment_switches_it_on() -> None:
    task = {"name": "tiny", "frames_per_epoch": 320, "batch": 16, "hidden": [8]}
    experiment = Experiment.of({"task": task, "natural_gradient": {"rank_in": 4, "layers": ["0"]}})
    module = experiment.make_task().make_module()
    experiment.job().optimizer(module)
    assert list(_natural(module).layers) == ["0"]
    assert Experiment.of(experiment.plain()) == experiment
    with pytest.raises(SettingsError, match=r"natural_gradient.layers: unknown 'first'"):
        Experiment.of({"task": task, "natural_gradient": {"layers": ["first"]}}).job()
