"""Which bands the convolutions of a CLDNN see, and what does not fit."""

from __future__ import annotations

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.models.cldnn import CLDNNSettings
from tiny_models import built


def test_features_that_are_no_bands_skip_the_convolution() -> None:
    model = built("cldnn", inputs=26, bands=24)
    assert model.first.weight.shape[1] == 1
    x = torch.randn(2, model.left + 5 + model.right, 26, requires_grad=True)
    model.eval()(x).sum().backward()
    assert x.grad is not None
    assert float(x.grad[..., 24:].abs().sum()) > 0, "they reach the network beside it"


def test_deltas_are_maps_of_the_same_bands() -> None:
    model = built("cldnn", inputs=72, maps=3)
    assert model.first.weight.shape[1] == 3
    assert model.bands == 24
    assert model(torch.randn(2, model.left + 5 + model.right, 72)).shape == (2, 5, 7)


@pytest.mark.parametrize(
    ("bands", "window", "pool", "left"), [(24, 9, 3, 5), (40, 9, 4, 8), (9, 9, 1, 1), (4, 9, 3, 0)]
)
def test_bands_that_are_left_after_pooling(bands: int, window: int, pool: int, left: int) -> None:
    assert CLDNNSettings(window=window, pool=pool).pooled(bands) == left


def test_too_few_bands_are_refused() -> None:
    with pytest.raises(SettingsError, match="do not take window = 9, pool = 3 and narrow = 4; try smaller ones"):
        CLDNNSettings().build(12, 7)
