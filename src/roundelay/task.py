"""What is trained: minibatches, a loss, and held-out minibatches to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from roundelay.devices import seed_devices
from roundelay.learner import Learner
from roundelay.plugins import Registry

Scores = dict[str, float]
"""Sums over held-out frames, ``frames`` among them; the loop adds them up and divides by it."""


class Schedule(Protocol):
    """A factor of the learning rate, by frames, so that it does not depend on the number of learners."""

    def __call__(self, frames: float) -> float:
        """Return the factor after so many frames of the whole run."""

    def on_evaluation(self, scores: Scores) -> bool:
        """Take the scores of an evaluation, in means per frame; return whether training should stop."""


class Task:
    """A model's data and loss; subclass it.

    Everything depends on the minibatch's epoch and index alone: any learner can train a minibatch, and repeat it.
    """

    registry: ClassVar[Registry[Task]]
    """The tasks by the names that settings give them; `roundelay.tasks` sets it."""
    minibatches_per_epoch: int
    """Minibatches in an epoch."""
    nominal_frames: int
    """Frames in a full minibatch."""
    held_out_minibatches: int = 0
    """Held-out minibatches to evaluate on."""
    score_names: ClassVar[tuple[str, ...]] = ()
    """The names of the scores that `score` returns, if known before: settings that name others are refused."""

    def make_module(self) -> nn.Module:
        """Make the model, the same each time."""
        raise NotImplementedError

    def frames(self, epoch: int, index: int) -> int:
        """Return the number of frames in a minibatch, without loading it."""
        return self.nominal_frames

    def load(self, epoch: int, index: int) -> Any:
        """Return a minibatch."""
        raise NotImplementedError

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss per frame."""
        raise NotImplementedError

    def score(self, module: nn.Module, index: int) -> Scores:
        """Return sums over held-out minibatch ``index``: ``loss``, ``frames``, and what else is of interest."""
        raise NotImplementedError

    def gradient(self, learner: Learner, batch: Any) -> float:
        """Compute ``learner.grad`` and return the loss; override it if the gradient is not by autograd."""
        with learner.narrow_computation():
            loss = self.loss(learner.module, batch)
        loss.backward()
        return float(loss.detach())

    def describe(self, epoch: int, index: int) -> str:
        """Say what is in a minibatch, for an error message: its utterances, for example."""
        return ""

    def save_assets(self, run: Path) -> None:
        """Save into a run's folder what its model needs to be used elsewhere; nothing by default."""


def seed_minibatch(seed: int, epoch: int, index: int) -> None:
    """Seed torch's generators for one minibatch: dropout and sampling then repeat on any learner."""
    seed_devices(hash((seed, epoch, index)) & (2**63 - 1))  # of integers only: the same in every process


def evaluate(task: Task, module: nn.Module, indices: Sequence[int], load: Callable[[], None]) -> Scores:
    """Return the sums over the held-out minibatches ``indices``, with the weights that ``load`` loads."""
    training = module.training
    load()
    module.eval()
    total: Scores = {}
    with torch.no_grad():
        for index in indices:
            for name, value in task.score(module, index).items():
                total[name] = total.get(name, 0.0) + value
    module.train(training)
    return total
