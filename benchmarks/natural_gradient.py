"""Measure the cost of natural gradients and of Linear LSTMs: python benchmarks/natural_gradient.py [ROUNDS]."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from ratios import interleave, ratio, show
from roundelay.models import build_model
from roundelay.optim.natural_gradient import precondition

MODELS = {
    "DNN 6x512, minibatch 256": ({"name": "dnn", "layers": 6, "width": 512, "activation": "sigmoid"}, 256, 1),
    "DNN 6x128, minibatch 128": ({"name": "dnn", "layers": 6, "width": 128, "activation": "sigmoid"}, 128, 1),
    "BLSTM 2x128, 8 chunks of 60 frames": ({"name": "lstm", "layers": 2, "cells": 128, "dropout": 0.0}, 8, 60),
}


def stepping(settings: dict[str, object], items: int, frames: int, *, natural: bool) -> Callable[[], None]:
    """Return one step of SGD on noise."""
    torch.manual_seed(0)
    model: nn.Module = build_model(dict(settings), 40, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if natural:
        precondition(model, optimizer)
    context = int(model.left) + int(model.right)  # type: ignore[arg-type]  # of an AcousticModel
    x, y = torch.randn(items, frames + context, 40), torch.randint(300, (items * frames,))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x).flatten(0, 1), y).backward()
        optimizer.step()

    for _ in range(12):  # beyond the updates of every minibatch
        step()
    return step


def main() -> None:
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    for name, (settings, items, frames) in MODELS.items():
        steps = {"plain": stepping(settings, items, frames, natural=False)}
        if settings["name"] == "lstm":
            linear = settings | {"linear": True}
            steps["linear"] = stepping(linear, items, frames, natural=False)
            steps["natural"] = stepping(linear, items, frames, natural=True)
        else:
            steps["natural"] = stepping(settings, items, frames, natural=True)
        found = interleave(steps, rounds)
        for other in steps.keys() - {"plain"}:
            show(f"time: {other} / plain, {name}", ratio(found[other], found["plain"]))


if __name__ == "__main__":
    main()
