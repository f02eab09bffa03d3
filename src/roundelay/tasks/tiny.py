"""A built-in task that trains in seconds: frames drawn from Gaussian classes, mapped by a fixed random function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundelay.config import Count, Fraction, Seed, Width, check_bounds, limits
from roundelay.devices import device_of, to_device
from roundelay.task import Scores, Task

Pair = tuple[Tensor, Tensor]
Size = Annotated[int, limits(ge=1, largest=10_000)]  # of data that each process draws anew


@dataclass
class Tiny(Task):
    """Classify frames as one of ``classes``; about as hard as classifying senones, but a thousand times smaller.

    Every process draws the data from ``data_seed``, so no files are needed.
    """

    score_names: ClassVar[tuple[str, ...]] = ("loss", "error")

    frames_per_epoch: Annotated[int, limits(ge=1, largest=10**7)] = 6400
    classes: Size = 12
    features: Size = 20
    hidden: list[Width] = field(default_factory=lambda: [32, 32])
    model: Literal["dnn", "lstm"] = "dnn"
    activation: Literal["relu", "sigmoid"] = "relu"
    batch_norm: bool = False
    dropout: Fraction = 0.0
    data_seed: Seed = 0
    model_seed: Seed = 0
    batch: Count = 32
    """Frames in a minibatch."""

    def __post_init__(self) -> None:
        check_bounds(self)
        self.minibatches_per_epoch = -(-self.frames_per_epoch // self.batch)
        self.nominal_frames = self.batch
        self.held_out_minibatches = 4
        self._orders: dict[int, Tensor] = {}  # of the last epoch that was asked for
        self._train, self._held_out = self._draw(self.frames_per_epoch, 1), self._draw(1024, 2)

    def make_module(self) -> nn.Module:
        """Make the model, the same each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.model_seed)
            return _Recurrent(self) if self.model == "lstm" else _feed_forward(self)

    def frames(self, epoch: int, index: int) -> int:
        """Return the number of frames, fewer in the last minibatch of an epoch."""
        return min(self.batch, self.frames_per_epoch - index * self.batch)

    def load(self, epoch: int, index: int) -> Pair:
        """Return features and classes; the order of frames differs in each epoch."""
        order = self._orders.get(epoch)
        if order is None:
            generator = torch.Generator().manual_seed(hash((self.data_seed, epoch, 3)) & (2**63 - 1))
            order = torch.randperm(self.frames_per_epoch, generator=generator)
            self._orders = {epoch: order}
        mine = order[index * self.batch : (index + 1) * self.batch]
        return self._train[0][mine], self._train[1][mine]

    def loss(self, module: nn.Module, batch: Pair) -> Tensor:
        """Return the cross-entropy per frame."""
        return functional.cross_entropy(module(batch[0]), batch[1])

    def score(self, module: nn.Module, index: int) -> Scores:
        """Return cross-entropy and errors of a quarter of the held-out frames."""
        here = device_of(module)
        features, classes = (to_device(x.chunk(self.held_out_minibatches)[index], here) for x in self._held_out)
        logits = module(features)
        loss = functional.cross_entropy(logits, classes, reduction="sum")
        errors = (logits.argmax(1) != classes).sum()
        return {"loss": float(loss), "error": float(errors), "frames": float(len(classes))}

    def _draw(self, count: int, stream: int) -> Pair:
        world = torch.Generator().manual_seed(self.data_seed)
        means = torch.randn(self.classes, self.features, generator=world)
        bend = torch.randn(self.features, self.features, generator=world) / self.features**0.5
        draw = torch.Generator().manual_seed(hash((self.data_seed, stream)) & (2**63 - 1))
        classes = torch.randint(self.classes, (count,), generator=draw)
        frames = means[classes] + 0.8 * torch.randn(count, self.features, generator=draw)
        return torch.tanh(frames @ bend) * 2.0, classes


def _feed_forward(task: Tiny) -> nn.Module:
    layers: list[nn.Module] = []
    width = task.features
    for hidden in task.hidden:
        layers.append(nn.Linear(width, hidden))
        if task.batch_norm:
            layers.append(nn.BatchNorm1d(hidden))
        layers.append(nn.ReLU() if task.activation == "relu" else nn.Sigmoid())
        if task.dropout:
            layers.append(nn.Dropout(task.dropout))
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, task.classes))


class _Recurrent(nn.Module):
    """An LSTM over the features of a frame, four at a time."""

    def __init__(self, task: Tiny) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, task.hidden[0], batch_first=True)
        self.output = nn.Linear(task.hidden[0], task.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, F) to (N, classes)."""
        steps = functional.pad(x, (0, -x.shape[1] % 4)).view(len(x), -1, 4)
        logits: Tensor = self.output(self.lstm(steps)[0][:, -1])
        return logits
