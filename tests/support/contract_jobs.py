"""What the ranks of the contract's tests run on real processes and under MPI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # ranks are started without pytest's path

from roundelay.training.event_order import RecordedOrder
from roundelay.training.loop import Job
from strategy_cases import CASES
from tiny_jobs import Watching, tiny_job

MINIBATCHES = 200


def entry(name: str) -> str:
    """Name a function of this file for a launcher."""
    return f"{Path(__file__).resolve()}:{name}"


def job_of(case: str) -> Job:
    """What each case trains, wherever it runs."""
    return tiny_job(CASES[case](), minibatches=MINIBATCHES, task={"dropout": 0.1}, debug=True)


def train(runtime: Any, case: str) -> dict[str, Any]:
    """Train one case; return the consensus, the scores, what was trained, and the order of it all."""
    torch.set_num_threads(1)
    order = RecordedOrder()
    numbers: list[int | None] = []
    training = job_of(case).training(runtime, order)
    training.observers.append(Watching(lambda _, step: numbers.append(step.number)))
    consensus = runtime.run(training.run())
    return {
        "consensus": consensus.tolist(),
        "loss": training.scores["loss"],
        "trained": [number for number in numbers if number is not None],
        "order": order.tokens,
    }


def train_under_mpi(runtime: Any, cases: list[str]) -> list[dict[str, Any]]:
    """Train all cases one after another in one job."""
    from roundelay.runtimes.mpi import mpi_runtime

    results = []
    for case in cases:
        own = mpi_runtime.runtime(None)
        results.append(train(own, case))
        own.finish()
    return results
