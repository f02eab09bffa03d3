"""Convolutions over time and frequency, then LSTM layers, then a fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundelay.config import Context, Width
from roundelay.errors import SettingsError
from roundelay.models.base import AcousticModel, init_weights
from roundelay.models.recurrent import Recurrent, RecurrentSettings


@dataclass
class CLDNNSettings(RecurrentSettings):
    """Two convolutions, LSTM layers and fully connected layers.

    The first convolution spans ``window`` frames and as many bands and is pooled over frequency, the second spans
    three frames and ``narrow`` bands; a linear layer reduces the result to the LSTM's input.
    Sainath et al., 2015, "Convolutional, long short-term memory, fully connected deep neural networks".
    """

    bands: Context = 0
    """Frequency bands at the start of a frame; other features skip the convolution; 0: all features are bands."""
    maps: Width = 1
    """Number of maps of these bands: 3 with deltas of two orders."""
    filters: Width = 32
    """Filters of each convolution."""
    window: Width = 9
    """Frames and bands of the first convolution; odd."""
    pool: Width = 3
    """Bands that are pooled after the first convolution."""
    narrow: Width = 4
    """Bands of the second convolution."""
    reduced: Width = 128
    """Outputs of the linear layer after the convolutions, per frame."""
    connected: Context = 256
    """Units of the fully connected layer after the LSTM; 0: no such layer."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 1, "cells": 16, "dropout": 0.0, "filters": 4, "window": 3, "reduced": 16, "connected": 16},
        "small": {"layers": 1, "cells": 128, "fold": 3},
        # Sainath et al.: 256 maps, two LSTM layers of 832 cells with projection 512, one connected layer of 1024
        "google": {
            "layers": 2,
            "cells": 832,
            "projection": 512,
            "bidirectional": False,
            "dropout": 0.0,
            "filters": 256,
            "reduced": 256,
            "connected": 1024,
            "right": 5,
        },
        # 128 filters of 9 frames, pooled by 4, down to 512, two LSTMP layers of 1024 cells and projection 512
        "aslp": {
            "layers": 2,
            "cells": 1024,
            "projection": 512,
            "bidirectional": False,
            "dropout": 0.0,
            "filters": 128,
            "pool": 4,
            "reduced": 512,
            "connected": 0,
        },
    }

    def build(self, inputs: int, outputs: int) -> CLDNN:
        """Return the model."""
        if self.window % 2 == 0:
            raise SettingsError(f"window must be odd, not {self.window}")
        bands = self.bands or inputs // self.maps
        if bands * self.maps > inputs or self.pooled(bands) < self.narrow:
            raise SettingsError(
                f"{self.maps} x {bands} bands of {inputs} features do not take window = {self.window}, "
                f"pool = {self.pool} and narrow = {self.narrow}; try smaller ones"
            )
        return CLDNN(self, inputs, outputs)

    def pooled(self, bands: int) -> int:
        """Return the number of bands after the first convolution and its pooling."""
        return max(0, bands - self.window + 1) // self.pool


class CLDNN(AcousticModel):
    """The model of `CLDNNSettings`."""

    def __init__(self, settings: CLDNNSettings, inputs: int, outputs: int) -> None:
        super().__init__()
        reach = settings.window // 2 + 1  # frames that both convolutions need on each side
        self.inputs, self.outputs, self.stride = inputs, outputs, settings.stride
        self.left, self.right = settings.left + reach, settings.right + reach
        self.maps, self.pool, self.reach = settings.maps, settings.pool, reach
        self.bands = settings.bands or inputs // settings.maps
        self.first = nn.Conv2d(settings.maps, settings.filters, settings.window)
        self.second = nn.Conv2d(settings.filters, settings.filters, (3, settings.narrow))
        init_weights(self.first, "relu")
        init_weights(self.second, "relu")
        flat = settings.filters * (settings.pooled(self.bands) - settings.narrow + 1)
        self.reduce = nn.Linear(flat + inputs - self.maps * self.bands, settings.reduced)
        init_weights(self.reduce, None)
        self.recurrent = Recurrent(settings, settings.reduced)
        self.connected: nn.Module = nn.Identity()
        width = self.recurrent.size
        if settings.connected:
            layer = nn.Linear(width, settings.connected)
            init_weights(layer, "relu")
            self.connected = nn.Sequential(layer, nn.ReLU(), nn.Dropout(settings.dropout))
            width = settings.connected
        self.output = nn.Linear(width, outputs * settings.fold)
        init_weights(self.output, None)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits of the frames between the contexts."""
        frames = x.shape[1] - self.left - self.right
        banded = self.maps * self.bands
        maps = x[..., :banded].reshape(len(x), x.shape[1], self.maps, self.bands).transpose(1, 2)
        maps = functional.relu(functional.max_pool2d(self.first(maps), (1, self.pool)))
        maps = functional.relu(self.second(maps)).transpose(1, 2).flatten(2)  # (B, T, filters x bands)
        rest = x[:, self.reach : x.shape[1] - self.reach, banded:]
        steps = self.recurrent(self.reduce(torch.cat([maps, rest], 2)), lengths)
        return self.recurrent.scored(self.output(self.connected(steps)), frames, self.outputs)
