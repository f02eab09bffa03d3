"""A strategy, a task, a model and a corpus of a user's own, as a file outside the package would have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundelay import Learner, Strategy, Task
from roundelay.corpora.importer import Corpus
from roundelay.models import AcousticModel, ModelSettings
from roundelay.task import Scores


@dataclass
class Lazy(Strategy):
    """Average all models every ``period`` steps."""

    period: int = 4

    def setup(self, learner: Learner) -> None:
        self.steps = 0

    async def step(self, learner: Learner) -> None:
        learner.descend()
        self.steps += 1
        if self.steps % self.period == 0:
            learner.weights.copy_(await learner.comm.mean(learner.weights.clone()))

    async def consensus(self, learner: Learner) -> Tensor:
        return await learner.comm.mean(learner.weights.clone())


@dataclass
class Line(Task):
    """Fit a line."""

    batch: int = 8

    def __post_init__(self) -> None:
        self.minibatches_per_epoch, self.nominal_frames, self.held_out_minibatches = 20, self.batch, 1

    def make_module(self) -> nn.Module:
        module = nn.Linear(1, 1)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        return module

    def load(self, epoch: int, index: int) -> Any:
        x = torch.linspace(-1, 1, self.batch).unsqueeze(1) + 0.01 * index
        return x, 3 * x + 1

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        return functional.mse_loss(module(batch[0]), batch[1])

    def score(self, module: nn.Module, index: int) -> Scores:
        return {"loss": float(self.loss(module, self.load(0, index))) * self.batch, "frames": float(self.batch)}


class _Affine(AcousticModel):
    framewise = True

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.affine = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        made: Tensor = self.affine(x)
        return made


@dataclass
class Affine(ModelSettings):
    """One affine layer."""

    presets = {"usual": {}}  # noqa: RUF012 (as the package's models have them)

    def build(self, inputs: int, outputs: int) -> AcousticModel:
        return _Affine(inputs, outputs)


def _bring(source: Path, out: Path) -> None:
    raise NotImplementedError


CORPUS = Corpus("own", "a corpus of one's own", "none", _bring)
NOTHING = 3
