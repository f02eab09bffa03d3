"""LSTM layers over steps of one or several frames, used by `lstm` and `cldnn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from roundelay.config import Context, Depth, Fraction, Width
from roundelay.models.base import ModelSettings, stack
from roundelay.models.linear_lstm import LinearLSTM


@dataclass
class RecurrentSettings(ModelSettings):
    """The settings of LSTM layers."""

    layers: Depth = 2
    """LSTM layers."""
    cells: Width = 128
    """Cells per layer and direction."""
    bidirectional: bool = True
    projection: Context = 0
    """Recurrent projection of each direction (LSTMP); 0: none."""
    dropout: Fraction = 0.2
    """Dropout between layers."""
    left: Context = 0
    """Frames of context before the first scored frame."""
    right: Context = 0
    """Frames of context after the last scored frame; in a unidirectional model the delay of the output."""
    fold: Depth = 1
    """Frames that a step reads and scores, each with its own outputs: so many times fewer steps."""
    stride: Depth = 1
    """Frames per score, for CTC; a step reads ``fold`` times as many."""
    linear: bool = False
    """Build the LSTM of Linear layers, for natural gradients; the same function, about three times slower."""


class Recurrent(nn.Module):
    """LSTM layers; (B, left + T + right, F) to one vector per step of ``fold * stride`` frames."""

    def __init__(self, settings: RecurrentSettings, inputs: int) -> None:
        super().__init__()
        self.settings, self.step = settings, settings.fold * settings.stride
        dropout = settings.dropout if settings.layers > 1 else 0.0
        sizes = (inputs * self.step, settings.cells, settings.layers)
        both, projection = settings.bidirectional, settings.projection
        self.lstm: nn.LSTM | LinearLSTM
        if settings.linear:
            self.lstm = LinearLSTM(*sizes, bidirectional=both, projection=projection, dropout=dropout)
        else:
            self.lstm = nn.LSTM(*sizes, batch_first=True, bidirectional=both, proj_size=projection, dropout=dropout)
        self.size = (settings.projection or settings.cells) * (2 if settings.bidirectional else 1)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return (B, steps, size) over all frames, context included."""
        x = stack(x, self.step)
        if lengths is None:
            return cast("Tensor", self.lstm(x)[0])
        settings = self.settings
        read = torch.div(lengths + settings.left + settings.right + self.step - 1, self.step, rounding_mode="floor")
        if isinstance(self.lstm, LinearLSTM):
            return cast("Tensor", self.lstm(x, read.clamp(max=x.shape[1]))[0])
        packed = pack_padded_sequence(x, read.clamp(max=x.shape[1]).cpu(), batch_first=True, enforce_sorted=False)
        back: tuple[Tensor, Any] = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return back[0]

    def scored(self, steps: Tensor, frames: int, outputs: int) -> Tensor:
        """Select the scores of ``frames`` frames from those of all steps, (B, steps, fold outputs)."""
        settings = self.settings
        scores = steps.reshape(len(steps), -1, outputs)  # one per ``stride`` frames
        first = settings.left if settings.bidirectional else settings.left + settings.right
        begin = first // settings.stride
        return scores[:, begin : begin + -(-frames // settings.stride)]
