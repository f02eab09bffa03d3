"""A small classifier with batch norm and dropout, and its data, as a user has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(320, 6, generator=GENERATOR)
Y = (X[:, :2].sum(1) > 0).long()
LOADER: DataLoader[Any] = DataLoader(TensorDataset(X[:256], Y[:256]), batch_size=16, shuffle=True)
HELD_OUT: DataLoader[Any] = DataLoader(TensorDataset(X[256:], Y[256:]), batch_size=32)
LOSS = nn.functional.cross_entropy


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def error(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    return {"error": (outputs.argmax(1) != targets).float().mean()}
