"""Entries that the tests have learner processes call (`roundelay.runtimes.processes.launcher.run`), and their task."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.errors import LearnerLost, NumericalError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.processes.process_runtime import ProcessRuntime
from roundelay.strategies import find
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Asynchronous, Strategy
from roundelay.task import Scores, Task
from roundelay.training.budget import Budget
from roundelay.training.loop import Job, Training
from roundelay.training.member import Member
from roundelay.training.observer import Evaluation, Step


@dataclass
class Gossip(Asynchronous):
    """Ask a neighbour to average with us while the gradient is computed; like AD-PSGD."""

    share: float = 0.4

    def overlap(self, learner: Learner) -> None:
        self.turn = getattr(self, "turn", 0) + 1
        to = (learner.comm.rank + 1 + self.turn % max(1, learner.comm.size - 1)) % learner.comm.size
        self.sent = learner.weights.clone()
        self.asked = learner.comm.request(learner.weights, to)

    async def step(self, learner: Learner) -> None:
        theirs = await self.asked
        learner.weights.add_(theirs - self.sent, alpha=self.share)
        learner.descend()

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        before = learner.weights.clone()
        learner.weights.add_(theirs - before, alpha=self.share)
        return before


@dataclass
class Ring(Strategy):
    """Average with both neighbours' weights, exchanged while the gradient is computed; like delay by one."""

    def overlap(self, learner: Learner) -> None:
        rank, size = learner.comm.rank, learner.comm.size
        left, right = (rank - 1) % size, (rank + 1) % size
        self.coming = [
            learner.comm.exchange(learner.weights, right, left),
            learner.comm.exchange(learner.weights, left, right),
        ]

    async def step(self, learner: Learner) -> None:
        for theirs in self.coming:
            learner.weights.add_(await theirs)
        learner.weights.div_(3)
        learner.descend()


@dataclass
class Server(Asynchronous):
    """Rank 0 keeps the weights and descends along whatever gradient it is sent."""

    servers: int = 1

    async def step(self, learner: Learner) -> None:
        learner.weights.copy_(await learner.comm.request(learner.grad, to=0))

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        learner.descend(theirs * 0.1)
        return learner.weights

    async def consensus(self, learner: Learner) -> Tensor:
        return await learner.comm.broadcast(learner.weights.clone(), root=0)


STRATEGIES: dict[str, type[Strategy]] = {
    "synchronous": Synchronous,
    "averaging": Averaging,
    "gossip": Gossip,
    "ring": Ring,
    "server": Server,
}


def entry(name: str) -> str:
    """Name a function of this file for `launcher.run`."""
    return f"{Path(__file__).resolve()}:{name}"


class Sine(Task):
    """Fit a small network to a sine; minibatches differ in length."""

    minibatches_per_epoch = 40
    nominal_frames = 32
    held_out_minibatches = 2

    def __init__(
        self,
        *,
        adam: bool = False,
        width: int = 24,
        pause_seconds: float = 0.0,
        rate: float = 0.05,
        momentum: float = 0.9,
    ) -> None:
        self.adam, self.width, self.pause_seconds = adam, width, pause_seconds
        self.rate, self.momentum = rate, momentum

    def make_module(self) -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, self.width), nn.Tanh(), nn.Linear(self.width, 1))

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.AdamW(module.parameters(), lr=0.01)
        return torch.optim.SGD(module.parameters(), lr=self.rate, momentum=self.momentum)

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
    module = task.make_module()
    learner = Learner(module, task.optimizer(module), nominal_frames=task.nominal_frames)
    name = settings["strategy"]
    strategy = (STRATEGIES[name] if name in STRATEGIES else find(name))(**settings.get("with", {}))
    budget = Budget(task.minibatches_per_epoch, settings.get("minibatches", 200), warmup=settings.get("warmup", 0))
    return Training(Member(learner, strategy, runtime), Job(task, strategy, budget))


class Flushing:
    """An observer that writes each step to the record's file at once."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def stepped(self, learner: Learner, step: Step) -> None:
        self.record.flush()

    def evaluated(self, learner: Learner, evaluation: Evaluation) -> None:
        pass


def digest(x: Tensor) -> str:
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest()


def train(runtime: ProcessRuntime, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and tell the bits of the consensus."""
    training = make_training(runtime, settings)
    consensus = runtime.run(training.run())
    return {"digest": digest(consensus), "loss": training.scores.get("loss"), "weights": consensus.tolist()}


def train_traced(runtime: ProcessRuntime, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, with every finished step in the record at once, our process id and the run's beginning in a file."""
    folder, mine = Path(settings["folder"]), runtime.process.initial_rank
    training = make_training(runtime, settings)
    training.observers.append(Flushing(runtime.record))
    (folder / f"pid-{mine}.tmp").write_text(json.dumps([os.getpid(), time.time() - runtime.now()]))
    (folder / f"pid-{mine}.tmp").rename(folder / f"pid-{mine}")
    consensus = runtime.run(training.run())
    return {"digest": digest(consensus), "loss": training.scores.get("loss"), "epoch": training.member.generation}


def end_while_waiting(runtime: ProcessRuntime, settings: dict[str, Any]) -> None:
    """Be told to end while waiting for the baton, which another thread has, and be slow to do so."""
    runtime.run(make_training(runtime, settings).participation.rendezvous())
    taken = threading.Event()

    def serve() -> None:
        with runtime.strategy_lock.acquired():
            taken.set()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)

    try:
        with runtime.strategy_lock.released():
            threading.Thread(target=serve, daemon=True).start()
            taken.wait()
    finally:
        time.sleep(0.3)


def tell(runtime: ProcessRuntime, settings: dict[str, Any]) -> dict[str, Any]:
    """Tell who and where we are."""
    threads = torch.get_num_threads()
    return {"learner": runtime.process.initial_rank, "process": os.getpid(), "threads": threads, **settings}


def fail(runtime: ProcessRuntime, settings: dict[str, Any]) -> None:
    """Fail in one of several ways, while the others train."""
    if runtime.process.initial_rank != settings["learner"]:
        train(runtime, {"strategy": "synchronous", "minibatches": 10**6})
    time.sleep(0.1)
    if settings["how"] == "roundelay":
        raise NumericalError("the loss is nan")
    if settings["how"] == "foreign":
        raise ValueError("what is this?")
    if settings["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


def die_or_train(runtime: ProcessRuntime, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, except one, who dies whenever it is started."""
    if runtime.process.initial_rank == settings["learner"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return train(runtime, {"strategy": "synchronous", "minibatches": 120, "task": {"pause_seconds": 0.01}})


class Unwilling(Gossip):
    """Raises when it is asked."""

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        raise ValueError("will not serve")


def fail_serving(runtime: ProcessRuntime, settings: dict[str, Any]) -> None:
    """Fail in the thread that serves."""
    STRATEGIES["unwilling"] = Unwilling
    train(runtime, {"strategy": "unwilling"})


def come_back(runtime: ProcessRuntime, settings: dict[str, Any]) -> dict[str, Any]:
    """Step in lockstep; one stops itself until the others have gone on without it, and asks to come back."""
    learner, mine = Learner(nn.Linear(2, 2)), runtime.process.initial_rank
    asleep = Path(settings["folder"], "asleep")
    report: dict[str, Any] = {"trained": []}

    async def run() -> dict[str, Any]:
        stopped = False
        while True:
            view = await runtime.rendezvous(learner, report, lambda reports, _: {"reports": list(reports)})
            report.update(trained=[mine])
            try:
                while True:
                    if view.generation == 0 and mine == settings["stopped"] and not stopped:
                        stopped = True
                        asleep.write_text(str(os.getpid()))
                        os.kill(os.getpid(), signal.SIGSTOP)
                    time.sleep(0.01)
                    everyone = await learner.comm.gather(torch.tensor([runtime.has_newcomers()]))
                    if view.generation and view.size == 3:
                        mean = await learner.comm.mean(torch.ones(1))
                        members = [[each.get("newcomer", False), each["trained"]] for each in view.plan["reports"]]
                        return {"rank": view.rank, "size": view.size, "mean": float(mean), "members": members}
                    if view.size == 2 and asleep.exists():
                        os.kill(int(asleep.read_text()), signal.SIGCONT)
                    if bool(everyone[0]):
                        raise LearnerLost("a newcomer waits")
            except LearnerLost:
                continue

    return runtime.run(run())
