"""The published speed-up of model averaging, predicted by running its file in the simulator."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from roundelay import config
from roundelay.runtimes.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def published() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_published", ROOT / "benchmarks" / "published.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_fitted_to_eight_gpus_it_predicts_32(published: ModuleType) -> None:
    assert max(gpus for _, gpus in published.CALIBRATION) == 8
    machine = published.calibrate()
    found = published.predict(machine)
    wanted = {("all-reduce", 16): 9.3, ("all-reduce", 32): 16.7, ("butterfly", 16): 10.1, ("butterfly", 32): 18.0}
    assert found == pytest.approx(wanted, rel=0.1)
    shipped = config.build(
        Cluster, config.read(ROOT / "src" / "roundelay" / "planning" / "clusters" / "k20-mpi.toml"), "k20"
    )
    assert shipped.compute.seconds_per_frame == pytest.approx(machine.compute.seconds_per_frame, rel=0.01)
    assert shipped.inter_node.bandwidth == pytest.approx(machine.inter_node.bandwidth, rel=0.01)
    assert shipped.operation_seconds == pytest.approx(machine.operation_seconds, rel=0.01)
    assert shipped.epoch_seconds == pytest.approx(machine.epoch_seconds, rel=0.01)


@pytest.mark.slow
def test_no_single_run_decides_the_prediction(published: ModuleType) -> None:
    change = published.leave_one_out(published.predict(published.calibrate()))
    assert set(change) == set(published.CALIBRATION)
    assert max(change.values()) < 0.1
