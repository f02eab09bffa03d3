"""The base classes of acoustic models and of their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from roundelay.config import Settings

Activation = Literal["relu", "sigmoid", "tanh"]


class AcousticModel(nn.Module):
    """A module that maps features to logits, for training and decoding.

    ``forward`` takes (B, left + T + right, F) and returns (B, ceil(T / stride), outputs).
    Legend: B items, T frames, F features.
    """

    inputs: int
    """Features per frame."""
    outputs: int
    """Number of senones, or of labels with the blank."""
    left: int = 0
    """Frames of context before the first scored frame."""
    right: int = 0
    """Frames of context after the last scored frame."""
    stride: int = 1
    """Frames per score."""
    framewise: ClassVar[bool] = False
    """Whether the scores of a frame depend only on its context: then single frames may be shuffled."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits; if items are padded, ``lengths`` (B) are their numbers of real frames."""
        raise NotImplementedError


@dataclass
class ModelSettings(Settings):
    """The settings of a model; `build` makes the model."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Named sets of settings."""

    def build(self, inputs: int, outputs: int) -> AcousticModel:
        """Return the model; its initial weights are drawn from torch's generator."""
        raise NotImplementedError


def activation(name: Activation) -> nn.Module:
    """Return the nonlinearity of this name."""
    made: nn.Module = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}[name]()
    return made


def init_weights(layer: nn.Linear | nn.Conv2d | nn.Conv1d, name: Activation | None) -> None:
    """Draw a layer's weights so that the nonlinearity after it keeps the signal's size; set biases to zero."""
    if name == "relu":
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    else:
        nn.init.xavier_normal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def stack(x: Tensor, size: int) -> Tensor:
    """Join every ``size`` frames, (B, T, F) to (B, ceil(T / size), size F); repeat the last frame if needed."""
    if size == 1:
        return x
    missing = -x.shape[1] % size
    if missing:
        x = functional.pad(x.transpose(1, 2), (0, missing), mode="replicate").transpose(1, 2)
    return x.reshape(len(x), x.shape[1] // size, size * x.shape[2])
