"""What every acoustic model is: a module from frames with context to a score of each senone, and its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from roundelay.errors import SettingsError

__all__ = ["AcousticModel", "Activation", "ModelSettings", "activation", "stack", "start"]

Activation = Literal["relu", "sigmoid", "tanh"]


class AcousticModel(nn.Module):
    """Map features to logits; one class for training and decoding.

    ``forward`` takes (B, left + T + right, F) and returns (B, ceil(T / stride), outputs).
    Legend: B items, T frames, F features.
    """

    inputs: int
    """Features in a frame."""
    outputs: int
    """Senones, or labels and the blank."""
    left: int = 0
    """Frames before the first that is scored."""
    right: int = 0
    """Frames after the last that is scored."""
    stride: int = 1
    """Frames a score."""
    framewise: ClassVar[bool] = False
    """Whether a frame's scores depend on its context alone, so that frames may be shuffled one by one."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits; ``lengths`` (B) are the frames that count, where items are padded."""
        raise NotImplementedError


@dataclass
class ModelSettings:
    """What a model is made by; `build` makes it."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Settings that go together, by name."""

    def build(self, inputs: int, outputs: int) -> AcousticModel:
        """Make the model, its weights drawn from torch's generator."""
        raise NotImplementedError

    def at_least(self, **least: float) -> None:
        """Complain of a setting that is too small."""
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise SettingsError(f"{name} must be at least {bound}, not {getattr(self, name)}")


def activation(name: Activation) -> nn.Module:
    """Make the nonlinearity of this name."""
    made: nn.Module = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}[name]()
    return made


def start(layer: nn.Linear | nn.Conv2d | nn.Conv1d, name: Activation | None) -> None:
    """Draw a layer's first weights so that the nonlinearity after it keeps the signal's size; biases are zero."""
    if name == "relu":
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    else:
        nn.init.xavier_normal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def stack(x: Tensor, size: int) -> Tensor:
    """Put every ``size`` frames side by side, (B, T, F) to (B, ceil(T / size), size F), the last frame repeated."""
    if size == 1:
        return x
    missing = -x.shape[1] % size
    if missing:
        x = functional.pad(x.transpose(1, 2), (0, missing), mode="replicate").transpose(1, 2)
    return x.reshape(len(x), x.shape[1] // size, size * x.shape[2])
