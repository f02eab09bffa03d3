"""Conformer: self-attention and convolution in turn, as in most recognisers today."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundelay.config import Context, Depth, Fraction, Width
from roundelay.errors import SettingsError
from roundelay.models.base import AcousticModel, ModelSettings, init_weights, stack


@dataclass
class ConformerSettings(ModelSettings):
    """Blocks of half a feed-forward layer, self-attention, convolution, and the other half.

    Gulati et al., 2020, "Conformer: convolution-augmented transformer for speech recognition".  Two departures:
    positions rotate queries and keys (Su et al., 2021) instead of being added to the scores; the convolution is
    followed by layer norm, which does not depend on padding or on other learners.
    """

    layers: Depth = 4
    width: Width = 144
    """Channels; a multiple of twice the heads."""
    heads: Width = 4
    kernel: Depth = 15
    """Steps of the convolution; odd."""
    dropout: Fraction = 0.1
    left: Context = 0
    """Frames of context before the first scored frame."""
    right: Context = 0
    """Frames of context after the last scored frame."""
    fold: Depth = 1
    """Frames that a step reads and scores, each with its own outputs."""
    stride: Depth = 1
    """Frames per score, for CTC."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 1, "width": 16, "heads": 2, "kernel": 3, "dropout": 0.0},
        "small": {"fold": 3},
        "ctc": {"stride": 4},
        "large": {"layers": 17, "width": 512, "heads": 8, "kernel": 31, "stride": 4},
    }

    def build(self, inputs: int, outputs: int) -> Conformer:
        """Return the model."""
        if self.width % (2 * self.heads):
            raise SettingsError(f"width = {self.width} does not divide by twice heads = {self.heads}")
        if self.kernel % 2 == 0:
            raise SettingsError(f"kernel must be odd, not {self.kernel}")
        return Conformer(self, inputs, outputs)


class Conformer(AcousticModel):
    """The model of `ConformerSettings`."""

    def __init__(self, settings: ConformerSettings, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs, self.left, self.right = inputs, outputs, settings.left, settings.right
        self.stride, self.step = settings.stride, settings.fold * settings.stride
        self.front = nn.Sequential(nn.Linear(inputs * self.step, settings.width), nn.Dropout(settings.dropout))
        self.blocks = nn.ModuleList(_Block(settings) for _ in range(settings.layers))
        self.output = nn.Linear(settings.width, outputs * settings.fold)
        init_weights(self.output, None)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits of the frames between the contexts."""
        frames = x.shape[1] - self.left - self.right
        x = self.front(stack(x, self.step))
        mask: Tensor | None = None  # (B, steps): whether a step is not padding
        if lengths is not None:
            read = torch.div(lengths + self.left + self.right + self.step - 1, self.step, rounding_mode="floor")
            mask = torch.arange(x.shape[1], device=x.device) < read.to(x.device)[:, None]
        for block in self.blocks:
            x = block(x, mask)
        scores: Tensor = self.output(x).reshape(len(x), -1, self.outputs)
        begin = self.left // self.stride
        return scores[:, begin : begin + -(-frames // self.stride)]


class _Block(nn.Module):
    def __init__(self, settings: ConformerSettings) -> None:
        super().__init__()
        width, dropout = settings.width, settings.dropout
        self.before, self.after = _feed_forward(width, dropout), _feed_forward(width, dropout)
        self.attention = _Attention(settings)
        self.convolution = _Convolution(width, settings.kernel, dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (B, T, width) to the same."""
        x = x + self.before(x) / 2
        x = x + self.attention(x, mask)
        x = x + self.convolution(x, mask)
        out: Tensor = self.norm(x + self.after(x) / 2)
        return out


def _feed_forward(width: int, dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.SiLU(),
        nn.Dropout(dropout),
        nn.Linear(4 * width, width),
        nn.Dropout(dropout),
    )


class _Attention(nn.Module):
    """Self-attention whose queries and keys are rotated by their position."""

    def __init__(self, settings: ConformerSettings) -> None:
        super().__init__()
        self.heads, self.drop = settings.heads, settings.dropout
        self.norm = nn.LayerNorm(settings.width)
        self.project = nn.Linear(settings.width, 3 * settings.width)
        self.output = nn.Sequential(nn.Linear(settings.width, settings.width), nn.Dropout(settings.dropout))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (B, T, width) to the same."""
        items, steps, width = x.shape
        query, key, value = self.project(self.norm(x)).view(items, steps, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            _rotate(query),
            _rotate(key),
            value,
            attn_mask=None if mask is None else mask[:, None, None, :],
            dropout_p=self.drop if self.training else 0.0,
        )
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(items, steps, width))
        return out


def _rotate(x: Tensor) -> Tensor:
    """Rotate pairs of channels of (B, heads, T, D) by angles that grow with time: products then see differences."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] * speeds
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)


class _Convolution(nn.Module):
    def __init__(self, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 2 * width)
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.rest = nn.Sequential(nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width), nn.Dropout(dropout))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (B, T, width) to the same."""
        x = functional.glu(self.gate(self.norm(x)), -1)
        if mask is not None:
            x = x * mask[..., None]
        out: Tensor = self.rest(self.depthwise(x.transpose(1, 2)).transpose(1, 2))
        return out
