"""All that one learner needs to train, on any runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from roundelay.errors import CheckpointError
from roundelay.learner import Learner
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.task import Schedule, Task
from roundelay.training.budget import Budget
from roundelay.training.checkpoint_files import Saver
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.event_order import Order
from roundelay.training.loop import Training
from roundelay.training.member import Member
from roundelay.training.training_settings import CheckpointSettings, GuardSettings

__all__ = ["Job", "start_with"]


def _plain_sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


@dataclass
class Job:
    """What is trained, how, and for how long; `training` makes one learner of it."""

    task: Task
    strategy: Strategy
    budget: Budget
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = field(default=_plain_sgd)
    schedule: Callable[[], Schedule] | None = None
    clip: float | None = None
    seed: int = 0
    debug: bool = False
    checkpoint: CheckpointSettings | None = None
    saver: Saver | None = None
    """Given if the run has a folder; shared by all learners of a process."""
    guard: GuardSettings | None = None
    lr_factor: float = 1.0
    """A factor of the learning rate on top of the checkpoint's, below 1 if the run is rolled back."""
    fingerprint: dict[str, str] | None = None
    """What must be the same on all learners, by name; compared when they first rendezvous."""
    start: dict[str, Tensor] | None = None
    """Pre-trained weights, by their names in the module."""

    def training(self, runtime: Runtime, order: Order | None = None) -> Training:
        """Make a learner's training."""
        module = self.task.make_module()
        if self.start is not None:
            start_with(module, self.start)
        learner = Learner(
            module,
            self.optimizer(module),
            clip=self.clip,
            nominal_frames=self.task.nominal_frames,
            debug=self.debug,
        )
        schedule = self.schedule() if self.schedule is not None else None
        wanted = self.checkpoint is not None or self.saver is not None
        return Training(
            Member(learner, self.strategy, runtime, schedule=schedule, order=order),
            self.task,
            self.budget,
            seed=self.seed,
            guard=self.guard,
            checkpointer=Checkpointer(self.checkpoint, self.saver) if wanted else None,
            fingerprint=self.fingerprint,
            lr_factor=self.lr_factor,
        )


def start_with(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give a module some of its weights."""
    try:
        unexpected = module.load_state_dict(tensors, strict=False).unexpected_keys
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"pretrain: the weights are another model's: {reason}") from error
    if unexpected:
        raise CheckpointError(f"pretrain: the weights are another model's: it has no {unexpected[0]}")
