"""Loops of the user's own, in processes of which one is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import roundelay
from roundelay.strategies import STRATEGIES


def entry(name: str) -> str:
    """Name a function of this file for a launcher."""
    return f"{Path(__file__).resolve()}:{name}"


def loop(runtime: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Train two epochs; the learner of this number kills itself in the middle of a minibatch of the first."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    learner = roundelay.join(model, optimizer, STRATEGIES[settings["strategy"]](), runtime=runtime)
    batches: Any = [torch.tensor([[float(k)]]) for k in range(30)]
    victim, epochs = runtime.process.initial_rank == settings["victim"], []
    for _ in range(2):
        handed: list[int] = []
        source = iter(batches[learner.rank :: 4]) if settings["own"] else batches
        for batch in learner.share(source):
            with learner.minibatch():
                if victim and len(handed) == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                (model(batch / 30) - 1).square().mean().backward()
            handed.append(int(batch))
        epochs.append(handed)
    with learner.consensus() as consensus:
        weights = consensus.tolist()
    learner.close()
    return {"epochs": epochs, "weights": weights}
