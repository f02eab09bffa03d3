"""A time-delay network: convolutions over time with growing dilation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from roundelay.config import Depth, Fraction, Width
from roundelay.errors import SettingsError
from roundelay.models.base import AcousticModel, ModelSettings, init_weights


@dataclass
class TDNNSettings(ModelSettings):
    """Convolutions over three frames, ``steps[k]`` apart in layer k, with a skip connection if widths are equal.

    Peddinti, Povey & Khudanpur, 2015, "A time delay neural network architecture for efficient modeling of long temporal
    contexts".  The skips are of the later factored variant (Povey et al., 2018); its factors are not.
    """

    width: Width = 256
    """Channels per layer."""
    steps: list[Depth] = field(default_factory=lambda: [1, 1, 2, 3, 3])
    """Distance between the three frames of each layer."""
    dropout: Fraction = 0.1

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"width": 16, "steps": [1, 2], "dropout": 0.0},
        "small": {},
        "large": {"width": 1024, "steps": [1, 1, 1, 3, 3, 3, 3, 3]},
    }

    def build(self, inputs: int, outputs: int) -> TDNN:
        """Return the model."""
        if not self.steps or min(self.steps) < 1:
            raise SettingsError(f"steps must be numbers from 1 up, one per layer, not {self.steps}")
        return TDNN(self, inputs, outputs)


class TDNN(AcousticModel):
    """The model of `TDNNSettings`."""

    def __init__(self, settings: TDNNSettings, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.left = self.right = sum(settings.steps)
        widths = [inputs] + [settings.width] * len(settings.steps)
        self.layers = nn.ModuleList(
            _Layer(before, after, step, settings.dropout)
            for before, after, step in zip(widths, widths[1:], settings.steps, strict=False)
        )
        self.output = nn.Conv1d(settings.width, outputs, 1)
        init_weights(self.output, None)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits of the frames between the contexts."""
        x = x.transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.output(x)
        return logits.transpose(1, 2)


class _Layer(nn.Module):
    """Three frames, ReLU, batch norm; the skip connection adds the middle frame."""

    def __init__(self, before: int, after: int, step: int, dropout: float) -> None:
        super().__init__()
        self.step, self.skips = step, before == after
        self.convolution = nn.Conv1d(before, after, 3, dilation=step)
        init_weights(self.convolution, "relu")
        self.rest = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(after), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, T) to (B, C, T - 2 step)."""
        out: Tensor = self.rest(self.convolution(x))
        return out + x[..., self.step : -self.step] if self.skips else out
