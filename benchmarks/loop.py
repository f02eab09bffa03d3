"""Compare one learner in our loop with a hand-written PyTorch loop: python benchmarks/loop.py [ROUNDS]."""

from __future__ import annotations

import sys

import torch

from models import MODELS, Noise, sgd
from ratios import interleave, ratio, show
from roundelay.runtimes.blocking import run_blocking
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategies.synchronous import Synchronous
from roundelay.training.budget import Budget
from roundelay.training.loop import Job


def by_hand(task: Noise) -> object:
    module = task.make_module()
    optimizer = sgd(module)
    number = 0

    def step() -> None:
        nonlocal number
        optimizer.zero_grad()
        loss = task.loss(module, task.load(0, number))
        loss.backward()
        optimizer.step()
        loss.item()
        number += 1

    return step


def ours(task: Noise) -> object:
    training = Job(task, Synchronous(), Budget(10**9, 10**9), sgd).training(LocalRuntime())
    run_blocking(training.participation.rendezvous())

    async def minibatch() -> None:
        claim = await training.participation.agenda.claim()
        assert claim is not None
        await training.train(claim)

    return lambda: run_blocking(minibatch())


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    for name, task in MODELS.items():
        found = interleave({"hand": by_hand(task), "ours": ours(task)}, rounds)  # type: ignore[dict-item]
        show(f"our loop / PyTorch by hand, one learner, {name}", ratio(found["hand"], found["ours"]), 0.97)


if __name__ == "__main__":
    main()
