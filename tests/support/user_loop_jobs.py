"""Loops of the user's own, in processes of which one is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import roundelay
from roundelay.runtimes.processes.membership import report_death
from roundelay.strategies import STRATEGIES
from roundelay.user_loop import runtime_detection


def entry(name: str) -> str:
    """Name a function of this file for a launcher."""
    return f"{Path(__file__).resolve()}:{name}"


def loop(runtime: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Train two epochs; the learner of this number kills itself in the middle of a minibatch of the first."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    strategy, process, store = STRATEGIES[settings["strategy"]](), runtime.process, runtime.store
    if strategy.servers:  # they live in learners' processes, whose world a launcher describes
        runtime_detection.launched = runtime_detection.LoopWorld(
            process.initial_rank, process.size, store.clone(), process.host, process.address, elastic=True
        )
        learner = roundelay.join(model, optimizer, strategy)
    else:
        learner = roundelay.join(model, optimizer, strategy, runtime=runtime)
    batches: Any = [torch.tensor([[float(k)]]) for k in range(30)]
    victim, epochs = process.initial_rank == settings["victim"], []
    for _ in range(2):
        handed: list[int] = []
        source = iter(batches[learner.rank :: 4]) if settings["own"] else batches
        for batch in learner.share(source):
            with learner.minibatch():
                if victim and len(handed) == 3:
                    if strategy.servers:  # as the launcher would, of each loop
                        report_death(store.clone().with_prefix("loop 0"), strategy.servers + learner.rank, "killed")
                    os.kill(os.getpid(), signal.SIGKILL)
                (model(batch / 30) - 1).square().mean().backward()
            handed.append(int(batch))
        epochs.append(handed)
    with learner.consensus() as consensus:
        weights = consensus.tolist()
    learner.close()
    return {"epochs": epochs, "weights": weights}
