"""Where tensors lie in the flat vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.vector import ALIGNMENT_BYTES


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


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


def test_nothing_to_train_is_an_error() -> None:
    module = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(SettingsError, match="nothing to train"):
        Learner(module, None)
