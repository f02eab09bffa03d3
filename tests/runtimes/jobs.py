"""What learners' processes do in the tests: entries for `roundelay.runtimes.launch.run`, and a task to train on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.budget import Budget
from roundelay.learner import Learner
from roundelay.runtimes.processes import ProcessRuntime
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Asynchronous, Strategy
from roundelay.task import Scores, Task
from roundelay.training import Training


@dataclass
class Gossip(Asynchronous):
    """Ask a neighbour to average with us while the gradient is computed; like AD-PSGD."""

    share: float = 0.4

    def overlap(self, me: Learner) -> None:
        self.turn = getattr(self, "turn", 0) + 1
        to = (me.comm.rank + 1 + self.turn % max(1, me.comm.size - 1)) % me.comm.size
        self.sent = me.weights.clone()
        self.asked = me.comm.request(me.weights, to)

    async def step(self, me: Learner) -> None:
        theirs = await self.asked
        me.weights.add_(theirs - self.sent, alpha=self.share)
        me.descend()

    def serve(self, me: Learner, theirs: Tensor, of: int) -> Tensor:
        before = me.weights.clone()
        me.weights.add_(theirs - before, alpha=self.share)
        return before


@dataclass
class Ring(Strategy):
    """Average with both neighbours' weights, exchanged while the gradient is computed; like delay by one."""

    def overlap(self, me: Learner) -> None:
        rank, size = me.comm.rank, me.comm.size
        left, right = (rank - 1) % size, (rank + 1) % size
        self.coming = [me.comm.exchange(me.weights, right, left), me.comm.exchange(me.weights, left, right)]

    async def step(self, me: Learner) -> None:
        for theirs in self.coming:
            me.weights.add_(await theirs)
        me.weights.div_(3)
        me.descend()


@dataclass
class Server(Asynchronous):
    """Rank 0 keeps the weights and descends along whatever gradient it is sent."""

    servers: int = 1

    async def step(self, me: Learner) -> None:
        me.weights.copy_(await me.comm.request(me.grad, to=0))

    def serve(self, me: Learner, theirs: Tensor, of: int) -> Tensor:
        me.descend(theirs * 0.1)
        return me.weights

    async def consensus(self, me: Learner) -> Tensor:
        return await me.comm.broadcast(me.weights.clone(), root=0)


STRATEGIES: dict[str, type[Strategy]] = {
    "synchronous": Synchronous,
    "averaging": Averaging,
    "gossip": Gossip,
    "ring": Ring,
    "server": Server,
}


def entry(name: str) -> str:
    """Name a function of this file for `launch.run`."""
    return f"{Path(__file__).resolve()}:{name}"


class Sine(Task):
    """Fit a small network to a sine; minibatches differ in length."""

    per_epoch = 40
    nominal_frames = 32
    held_out = 2

    def __init__(self, *, adam: bool = False, width: int = 24, pause_seconds: float = 0.0) -> None:
        self.adam, self.width, self.pause_seconds = adam, width, pause_seconds

    def module(self) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, self.width), nn.Tanh(), nn.Linear(self.width, 1))

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.AdamW(module.parameters(), lr=0.01)
        return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

    def frames(self, epoch: int, index: int) -> int:
        return 32 if index % 5 else 24

    def load(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * epoch + index)
        x = torch.rand(self.frames(epoch, index), 4, generator=generator)
        return x, torch.sin(3 * x.sum(1, keepdim=True))

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        time.sleep(self.pause_seconds)
        x, y = batch
        return nn.functional.mse_loss(module(x), y)

    def score(self, module: nn.Module, index: int) -> Scores:
        x, y = self.load(10**6, index)
        return {"loss": float(self.loss(module, (x, y))) * len(x), "frames": float(len(x))}


def make_training(runtime: Any, settings: dict[str, Any]) -> Training:
    """Make one learner's training; the simulator's and the processes' alike."""
    task = Sine(**settings.get("task", {}))
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


def train_traced(runtime: ProcessRuntime, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, with every finished step in the record at once, our process id and the run's beginning in a file."""
    folder, mine = Path(settings["folder"]), runtime.place.learner
    training = make_training(runtime, settings)
    training.on_step = lambda _: runtime.record.flush()
    (folder / f"pid-{mine}.tmp").write_text(json.dumps([os.getpid(), time.time() - runtime.now()]))
    (folder / f"pid-{mine}.tmp").rename(folder / f"pid-{mine}")
    consensus = runtime.run(training.run())
    return {"digest": digest(consensus), "loss": training.scores.get("loss"), "epoch": training.epoch}
