"""Stacked LSTM layers, uni- or bidirectional, with a linear bottleneck before the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from roundelay.config import Context
from roundelay.models.base import AcousticModel, init_weights
from roundelay.models.recurrent import Recurrent, RecurrentSettings


@dataclass
class LSTMSettings(RecurrentSettings):
    """LSTM layers, a linear bottleneck, and an output for each senone.

    The papers on decentralized training use this BLSTM, described by Cui et al., 2017, "Embedding-based speaker
    adaptive training of deep neural networks".
    """

    bottleneck: Context = 0
    """Units of a linear layer before the output; 0: none."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 1, "cells": 16, "dropout": 0.0},
        "small": {"layers": 2, "cells": 128, "fold": 3, "left": 6, "right": 6},
        # 6 layers of 1024 cells (512 per direction), bottleneck 256, 32000 senones, chunks of 21 frames: SWB2000
        "swb2000": {"layers": 6, "cells": 512, "bottleneck": 256, "dropout": 0.0},
        # 3 LSTMP layers of 1024 cells and projection 512
        "aslp": {"layers": 3, "cells": 1024, "projection": 512, "bidirectional": False, "dropout": 0.0, "right": 5},
    }

    def build(self, inputs: int, outputs: int) -> LSTM:
        """Return the model."""
        return LSTM(self, inputs, outputs)


class LSTM(AcousticModel):
    """The model of `LSTMSettings`."""

    def __init__(self, settings: LSTMSettings, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs, self.left, self.right = inputs, outputs, settings.left, settings.right
        self.stride = settings.stride
        self.recurrent = Recurrent(settings, inputs)
        self.dropout = nn.Dropout(settings.dropout)
        self.bottleneck: nn.Module = nn.Identity()
        width = self.recurrent.size
        if settings.bottleneck:
            self.bottleneck = nn.Linear(width, settings.bottleneck)
            width = settings.bottleneck
        self.output = nn.Linear(width, outputs * settings.fold)
        init_weights(self.output, None)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits of the frames between the contexts."""
        steps = self.output(self.bottleneck(self.dropout(self.recurrent(x, lengths))))
        return self.recurrent.scored(steps, x.shape[1] - self.left - self.right, self.outputs)
