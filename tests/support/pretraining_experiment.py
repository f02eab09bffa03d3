"""Experiments that pre-train a small network."""

from __future__ import annotations

from typing import Any

from roundelay.experiment.settings import Experiment
from strategy_cases import SETTINGS

TASK = {
    "name": "tiny",
    "frames_per_epoch": 480,
    "batch": 16,
    "hidden": [10, 8],
    "classes": 5,
    "features": 6,
    "activation": "sigmoid",
}


def experiment(kind: str = "rbm", strategy: str = "synchronous", learners: int = 1, **settings: Any) -> Experiment:
    """Return an experiment on a tiny task that pre-trains two layers."""
    return Experiment.of(
        {
            "task": TASK | settings.pop("task", {}),
            "optimizer": {"name": "SGD", "lr": 0.5},
            "strategy": {"name": strategy, **SETTINGS.get(strategy, {})},
            "learners": learners,
            "pretrain": {"kind": kind, "rate": 0.1, "first_rate": 0.05} | settings.pop("pretrain", {}),
            **settings,
        }
    )
