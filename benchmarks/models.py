"""The models that benchmarks train, and minibatches of noise for them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundelay.task import Task


class Blstm(nn.Module):
    """Three bidirectional layers of 2 x 256 cells over chunks of 21 frames."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(80, 256, num_layers=3, bidirectional=True, batch_first=True)
        self.output = nn.Linear(512, 2000)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(self.lstm(x)[0])
        return logits.flatten(0, 1)


def dnn(width: int = 1024, layers: int = 6) -> nn.Module:
    """440 inputs (11 frames of 40), ``layers`` x ``width``, 2000 senones."""
    widths = [440] + [width] * layers
    hidden = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 2000))


@dataclass
class Noise(Task):
    """Minibatches of noise: what training costs does not depend on what is learnt."""

    model: str = "dnn"
    batch: int = 256
    width: int = 1024
    minibatches_per_epoch: int = 10**9
    held_out_minibatches: int = 0

    def __post_init__(self) -> None:
        self.nominal_frames = self.batch
        generator = torch.Generator().manual_seed(0)
        shape = (self.batch // 21, 21, 80) if self.model == "blstm" else (self.batch, 440)
        self._x = [torch.randn(*shape, generator=generator) for _ in range(4)]
        count = shape[0] * (21 if self.model == "blstm" else 1)
        self._y = [torch.randint(2000, (count,), generator=generator) for _ in range(4)]

    def make_module(self) -> nn.Module:
        torch.manual_seed(0)
        return Blstm() if self.model == "blstm" else dnn(self.width)

    def load(self, epoch: int, index: int) -> Any:
        return self._x[index % 4], self._y[index % 4]

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(module(batch[0]), batch[1])


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the papers."""
    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


MODELS = {"DNN 6x1024": Noise("dnn", 256), "BLSTM 3x2x256": Noise("blstm", 21 * 16)}
