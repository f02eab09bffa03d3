"""Short runs whose course is kept in tests/golden, so that no algorithm drifts unseen."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))  # regenerate.py runs without pytest's path

from roundelay.runtimes.cluster import Cluster, Compute
from roundelay.strategies import STRATEGIES
from strategy_cases import SETTINGS, run_simulated
from tiny_jobs import sgd, tiny_job

FOLDER = Path(__file__).resolve().parent / "golden"


def history(name: str) -> dict[str, Any]:
    """Return the course of a run of four learners, one of them slow, with momentum and batch norm."""
    job = tiny_job(
        STRATEGIES[name](**SETTINGS.get(name, {})),
        budget={"evaluate_every": 10},
        optimizer=sgd(0.05, 0.5),
        task={"batch_norm": True},
    )
    ran = run_simulated(job, 4, Cluster(compute=Compute(slowness=[1.0, 1.0, 1.3, 2.0])))
    return {
        "strategy": name,
        "evaluations": [
            {key: round(event[key], 7) for key in ("minibatch", "time", "loss", "error", "distance")}
            for event in ran.events
            if event["event"] == "evaluate"
        ],
        "weights": [round(float(weight), 7) for weight in ran.consensus[0][:8]],
        "steps of each learner": [
            sum(event["event"] == "step" and event["member"] == f"learner {learner}" for event in ran.events)
            for learner in range(4)
        ],
    }
