"""Every acoustic model keeps the promise of `AcousticModel`, and is what its paper says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundelay.errors import SettingsError
from roundelay.models import MODELS, build_model, model_settings
from tiny_models import built

NAMES = sorted(MODELS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("frames", [1, 5, 21])
def test_scores_every_frame_between_the_contexts(name: str, frames: int) -> None:
    model = built(name)
    logits = model(torch.randn(3, model.left + frames + model.right, 24))
    assert logits.shape == (3, frames, 7)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", ["small"])
def test_every_parameter_of_the_small_preset_gets_a_gradient(name: str, preset: str) -> None:
    torch.manual_seed(1)
    model = build_model({"name": name, "preset": preset}, 40, 30)
    loss = nn.functional.cross_entropy(model(torch.randn(4, model.left + 21 + model.right, 40)).flatten(0, 1), _some())
    loss.backward()
    without = [
        each for each, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert without == []


def _some() -> Tensor:
    return torch.arange(84) % 30


@pytest.mark.parametrize("name", ["lstm", "cldnn", "conformer"])
@pytest.mark.parametrize("frames", [7, 12, 13])
def test_folding_scores_every_frame_and_striding_one_in_so_many(name: str, frames: int) -> None:
    folded, strided = built(name, fold=3), built(name, stride=4)
    assert folded(torch.randn(2, folded.left + frames + folded.right, 24)).shape == (2, frames, 7)
    assert strided(torch.randn(2, strided.left + frames + strided.right, 24)).shape == (2, -(-frames // 4), 7)
    assert (folded.stride, strided.stride) == (1, 4)


@pytest.mark.parametrize("name", ["lstm", "conformer"])
def test_padding_does_not_change_the_scores_of_what_counts(name: str) -> None:
    model = built(name).eval()
    one = torch.randn(1, 9, 24)
    padded = torch.cat([torch.cat([one, torch.randn(1, 5, 24)], 1), torch.randn(1, 14, 24)])
    alone, together = model(one, torch.tensor([9])), model(padded, torch.tensor([9, 14]))
    torch.testing.assert_close(together[:1, :9], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_papers_sizes_build_and_step() -> None:
    for table, inputs, outputs, parameters in (
        ({"name": "dnn", "preset": "switchboard"}, 40, 8806, 39.9e6),
        ({"name": "lstm", "preset": "swb2000"}, 140, 32000, 44.8e6),
    ):
        model = build_model(table, inputs, outputs)
        count = sum(parameter.numel() for parameter in model.parameters())
        assert abs(count / parameters - 1) < 0.05, count
        logits = model(torch.randn(2, model.left + 3 + model.right, inputs))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        logits.logsumexp(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_builds_on_no_memory_at_all(name: str) -> None:
    for preset in MODELS[name].presets:
        with torch.device("meta"):
            assert build_model({"name": name, "preset": preset}, 40, 100).outputs == 100


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"name": "dnnn"}, "dnn"),
        ({"name": "dnn", "preset": "sma"}, "small"),
        ({"name": "dnn", "wdth": 3}, "width"),
        ({"name": "lstm", "cells": 0}, "cells must be at least 1, not 0"),
        ({"name": "cldnn", "window": 4}, "odd"),
        ({"name": "cldnn", "bands": 50}, "50 bands of 40 features"),
        ({"name": "tdnn", "steps": []}, "steps"),
        ({"name": "conformer", "heads": 5}, "heads = 5"),
        ({"name": "conformer", "kernel": 2}, "kernel must be odd"),
    ],
)
def test_what_cannot_be_built_is_named(table: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        build_model(table, 40, 10)


def test_what_is_given_overrides_the_preset() -> None:
    settings = model_settings({"name": "lstm", "preset": "small", "cells": 7})
    assert (settings.cells, settings.fold) == (7, 3)  # type: ignore[attr-defined]  # an LSTM's
