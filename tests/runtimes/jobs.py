"""What learners' processes do in the tests: entries for `roundelay.runtimes.launch.run`, and a task to train on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.budget import Budget
from roundelay.learner import Learner
from roundelay.runtimes.processes import ProcessRuntime
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy
from roundelay.task import Scores, Task
from roundelay.training import Training

STRATEGIES: dict[str, type[Strategy]] = {"synchronous": Synchronous, "averaging": Averaging}


def entry(name: str) -> str:
    """Name a function of this file for `launch.run`."""
    return f"{Path(__file__).resolve()}:{name}"


class Sine(Task):
    """Fit a small network to a sine; minibatches differ in length."""

    per_epoch = 40
    nominal_frames = 32
    held_out = 2

    def __init__(self, *, momentum: float = 0.9, adam: bool = False, width: int = 24, rate: float = 0.05) -> None:
        self.momentum, self.adam, self.width, self.rate = momentum, adam, width, rate

    def module(self) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, self.width), nn.Tanh(), nn.Linear(self.width, 1))

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.AdamW(module.parameters(), lr=self.rate / 5)
        return torch.optim.SGD(module.parameters(), lr=self.rate, momentum=self.momentum)

    def frames(self, epoch: int, index: int) -> int:
        return 32 if index % 5 else 24

    def load(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * epoch + index)
        x = torch.rand(self.frames(epoch, index), 4, generator=generator)
        return x, torch.sin(3 * x.sum(1, keepdim=True))

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(module(x), y)

    def score(self, module: nn.Module, index: int) -> Scores:
        x, y = self.load(10**6, index)
        return {"loss": float(self.loss(module, (x, y))) * len(x), "frames": float(len(x))}


def make_training(runtime: Any, settings: dict[str, Any]) -> Training:
    """Make one learner's training; the simulator's and the processes' alike."""
    task = Sine(adam=settings.get("adam", False), width=settings.get("width", 24))
    module = task.module()
    me = Learner(module, task.optimizer(module), nominal_frames=task.nominal_frames)
    strategy = STRATEGIES[settings["strategy"]](**settings.get("with", {}))
    budget = Budget(task.per_epoch, settings.get("minibatches", 200), warmup=settings.get("warmup", 0))
    return Training(me, strategy, runtime, task=task, budget=budget)


def digest(x: Tensor) -> str:
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest()


def train(runtime: ProcessRuntime, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and tell the bits of the consensus."""
    training = make_training(runtime, settings)
    consensus = runtime.run(training.run())
    return {"digest": digest(consensus), "loss": training.scores.get("loss"), "weights": consensus.tolist()}
