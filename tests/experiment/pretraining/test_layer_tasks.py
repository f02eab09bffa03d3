"""Chains of layers, and what each layer is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pretraining_experiment import experiment
from roundelay.errors import SettingsError
from roundelay.experiment.pretraining.layer_stages import Pretraining
from roundelay.experiment.pretraining.layer_tasks import chain_of, inputs_of


def test_listens_to_a_layer_without_disturbing_the_model() -> None:
    task = experiment(task={"dropout": 0.5}).make_task()
    model = task.make_module().train()
    rows = inputs_of(task, model, "3", 0)
    assert rows.shape == (16, 10)
    assert torch.equal(rows, inputs_of(task, model, "3", 0))  # no dropout
    assert model.training
    assert not any(layer._forward_pre_hooks for layer in model.modules())


def test_models_that_cannot_be_pretrained() -> None:
    with pytest.raises(SettingsError, match="sigmoid behind it, which 0 has not"):
        Pretraining(experiment(task={"activation": "relu"}))
    with pytest.raises(SettingsError, match="chain of Linear layers.*lstm is LSTM"):
        Pretraining(experiment(task={"model": "lstm"}))
    with pytest.raises(SettingsError, match="2 hidden layers can have 1 of them pre-trained by layerwise, not 2"):
        Pretraining(experiment("layerwise", pretrain={"layers": 2}))
    with pytest.raises(SettingsError, match="no hidden layer"):
        chain_of(nn.Sequential(nn.Linear(2, 2)))
