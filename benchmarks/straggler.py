"""Measure how much a learner that is 5 times slower slows the others: python benchmarks/straggler.py [MINIBATCHES].

Four real processes whose gradient is about 5 ms of work and 45 ms of sleep, so that four fit on two cores.  For each
strategy the same run is made unslowed and with learner 3 slowed, in turn; figures are steps per second of the other
learners, slowed / unslowed.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))

from roundelay.learner import Learner
from roundelay.strategies import ADPSGD, RandomADPSGD, Strategy, Synchronous
from roundelay.task import Task
from roundelay.training.budget import Budget
from roundelay.training.loop import Job
from roundelay.training.observer import Evaluation, Step

STRATEGIES: dict[str, Strategy] = {
    "adpsgd": ADPSGD(),
    "adpsgd-random": RandomADPSGD(),
    "synchronous": Synchronous(),
}
EXPECTED = {"adpsgd": "at least 0.90", "adpsgd-random": "at least 0.90", "synchronous": "at most 0.30"}


@dataclass
class Sleepy(Task):
    """A gradient of a little work and much sleep."""

    minibatches_per_epoch: int = 10**9
    nominal_frames: int = 64
    held_out_minibatches: int = 0

    def make_module(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))

    def load(self, epoch: int, index: int) -> Tensor:
        return torch.full((64, 256), 0.01)

    def loss(self, module: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = module(batch).square().mean()
        return loss

    def gradient(self, learner: Learner, batch: Any) -> float:
        begin = time.monotonic()
        loss = 0.0
        while time.monotonic() - begin < 0.005:
            learner.grad.zero_()
            loss = super().gradient(learner, batch)
        time.sleep(0.045)
        return loss


class Clock:
    """An observer that keeps the time of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def stepped(self, learner: Learner, step: Step) -> None:
        self.times.append(time.monotonic())

    def evaluated(self, learner: Learner, evaluation: Evaluation) -> None:
        pass


def learner(runtime: Any, settings: dict[str, Any]) -> float:
    """Return this learner's steps per second."""
    budget = Budget(10**9, settings["minibatches"])
    training = Job(Sleepy(), STRATEGIES[settings["strategy"]], budget).training(runtime)
    clock = Clock()
    training.observers.append(clock)
    runtime.run(training.run())
    return (len(clock.times) - 1) / (clock.times[-1] - clock.times[0])


def main() -> None:
    from roundelay.runtimes.processes import launcher as launch
    from roundelay.runtimes.processes.options import Options

    minibatches = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    for name in STRATEGIES:
        ratios = []
        for _ in range(3):
            rates = []
            for slow in ({}, {3: 5.0}):
                settings = {"strategy": name, "minibatches": minibatches}
                found = launch.run(f"{__file__}:learner", settings, size=4, options=Options(slow=slow))
                rates.append(statistics.mean(found[:3]))
            ratios.append(rates[1] / rates[0])
        print(f"{name:15s} {statistics.median(ratios):.3f}  ({min(ratios):.3f} to {max(ratios):.3f})  {EXPECTED[name]}")


if __name__ == "__main__":
    main()
