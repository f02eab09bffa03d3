"""What all acoustic models share: initial weights, nonlinearities and bounds of settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundelay.errors import SettingsError
from roundelay.models.base import Activation, activation, init_weights, stack
from roundelay.models.dnn import DNNSettings


@pytest.mark.parametrize(("name", "variance"), [("relu", 2 / 400), (None, 2 / (400 + 200)), ("tanh", 2 / (400 + 200))])
def test_initial_weights_keep_the_size_of_the_signal(name: Activation | None, variance: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(400, 200)
    init_weights(layer, name)
    assert float(layer.weight.detach().var()) == pytest.approx(variance, rel=0.05)
    assert not layer.bias.detach().any()


def test_a_layer_may_have_no_bias() -> None:
    init_weights(nn.Linear(2, 2, bias=False), "relu")


def test_nonlinearities_by_name() -> None:
    x = torch.tensor([-1.0, 2.0])
    assert activation("relu")(x).tolist() == [0.0, 2.0]
    torch.testing.assert_close(activation("sigmoid")(x), torch.sigmoid(x))
    torch.testing.assert_close(activation("tanh")(x), torch.tanh(x))


def test_a_setting_below_its_bound_is_named() -> None:
    assert DNNSettings(width=1).width == 1
    with pytest.raises(SettingsError, match="width must be at least 1, not 0"):
        DNNSettings(width=0)


def test_stacking_repeats_the_last_frame() -> None:
    x = torch.arange(5.0).view(1, 5, 1)
    assert stack(x, 3).tolist() == [[[0, 1, 2], [3, 4, 4]]]
