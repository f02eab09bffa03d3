"""Runs that several tests of reports look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_files import simulate_run, write_run

from roundelay.report.page import write_report


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real simulated runs, some with a straggler or a killed learner, and a record as processes write it."""
    folder = tmp_path_factory.mktemp("runs")
    simulate_run(folder / "one", "synchronous", 1)
    for strategy in ("synchronous", "adpsgd", "bmuf"):
        simulate_run(folder / f"{strategy}-4", strategy, 4)
    compute = {"seconds": 0.02, "jitter": 0.1}
    slow = {"name": "a switch", "compute": compute, "stragglers": [{"learner": 1, "factor": 5.0}]}
    for strategy in ("synchronous", "adpsgd"):
        simulate_run(folder / f"{strategy}-4-slow", strategy, 4, cluster=slow)
    faults = {"name": "faulty", "compute": compute, "faults": [{"learner": 2, "at_seconds": 0.1}]}
    simulate_run(folder / "adpsgd-4-killed", "adpsgd-random", 4, cluster=faults)
    write_run(folder / "processes-2", "bmuf", 2, clock="wall")
    return folder


@pytest.fixture(scope="session")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of them."""
    return write_report(runs, tmp_path_factory.mktemp("report"), target={"score": "error", "value": 0.79})
