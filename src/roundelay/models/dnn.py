"""A feed-forward network over a window of frames: the first acoustic model of hybrid systems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from roundelay.config import Context, Fraction, Width, limits
from roundelay.models.base import AcousticModel, Activation, ModelSettings, activation, init_weights


@dataclass
class DNNSettings(ModelSettings):
    """Spliced frames, then hidden layers of one width, then an output for each senone.

    Seide, Li & Yu, 2011, "Conversational speech transcription using context-dependent deep neural networks".
    """

    layers: Annotated[int, limits(ge=0, largest=1000)] = 4
    """Hidden layers."""
    width: Width = 512
    """Units per hidden layer."""
    activation: Activation = "relu"
    batch_norm: bool = True
    dropout: Fraction = 0.2
    left: Context = 7
    """Frames of context before the classified frame."""
    right: Context = 7
    """Frames of context after the classified frame."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 2, "width": 32, "dropout": 0.0, "left": 2, "right": 2},
        "small": {},
        # 440 (40 fMLLR features, 11 frames) to 6 x 2048 to 8806 senones: Switchboard, 300 hours
        "switchboard": {
            "layers": 6,
            "width": 2048,
            "activation": "sigmoid",
            "batch_norm": False,
            "dropout": 0.0,
            "left": 5,
            "right": 5,
        },
    }

    def build(self, inputs: int, outputs: int) -> DNN:
        """Return the model."""
        return DNN(self, inputs, outputs)


class DNN(AcousticModel):
    """The model of `DNNSettings`."""

    framewise = True

    def __init__(self, settings: DNNSettings, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.outputs, self.left, self.right = inputs, outputs, settings.left, settings.right
        width = inputs * (settings.left + 1 + settings.right)
        layers: list[nn.Module] = []
        for _ in range(settings.layers):
            linear = nn.Linear(width, settings.width)
            init_weights(linear, settings.activation)
            layers.append(linear)
            if settings.batch_norm:
                layers.append(nn.BatchNorm1d(settings.width))
            layers.append(activation(settings.activation))
            if settings.dropout:
                layers.append(nn.Dropout(settings.dropout))
            width = settings.width
        self.hidden = nn.Sequential(*layers)
        self.output = nn.Linear(width, outputs)
        init_weights(self.output, None)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits of every frame that has its context."""
        window = self.left + 1 + self.right
        frames = x.shape[1] - window + 1
        if frames > 1:  # (B, T, F, window) to (B, T, window, F): oldest frame first, as in a spliced minibatch
            x = x.unfold(1, window, 1).transpose(2, 3)
        logits: Tensor = self.output(self.hidden(x.reshape(len(x) * frames, window * self.inputs)))
        return logits.view(len(x), frames, self.outputs)
