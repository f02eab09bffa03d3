"""Clusters from records: a known one is found again."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from roundelay.errors import DataError
from roundelay.planning.calibration import calibrate
from roundelay.planning.timing import time_strategy
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.runtimes.simulator.simulation import simulate
from roundelay.strategies import Averaging, Synchronous
from tiny_jobs import tiny_job


def record(folder: Path, cluster: Cluster, learners: int = 2, steps: int = 60) -> Path:
    """Record a simulated run, whose cluster is known, as if it were a real one."""
    folder.mkdir()
    job = tiny_job(Synchronous(), minibatches=learners * steps, task={"frames_per_epoch": 16 * learners * steps})
    simulate(job.training, cluster, learners=learners, record=Record(folder / "record.jsonl", clock="virtual"))
    return folder


KNOWN = Cluster(
    model_bytes=1e7,
    compute=Compute(seconds=0.05, jitter=0.1),
    intra_node=NetworkLink(0.0, 2e9),
    copy_bandwidth=1e9,
)


def test_a_known_cluster_is_found_again(tmp_path: Path) -> None:
    found = calibrate(record(tmp_path / "run", KNOWN), model_bytes=1e7)
    assert found.learners == 2
    assert found.cluster.compute.seconds == pytest.approx(0.05, rel=0.03)
    assert found.cluster.compute.jitter == pytest.approx(0.1, rel=0.35)
    assert found.cluster.compute.slowness == []
    assert found.measured["copying"] + found.measured["moving"] == pytest.approx(0.01 + 0.005, rel=0.1)
    for strategy in (Synchronous(), Averaging()):
        then, now = (time_strategy(strategy, c, 8, steps=50).step_seconds for c in (KNOWN, found.cluster))
        assert now == pytest.approx(then, rel=0.1)


def test_a_busy_machine_is_noted(tmp_path: Path) -> None:
    busy = Cluster(model_bytes=1e7, compute=Compute(seconds=0.05, jitter=1.5))
    assert "other programs" in calibrate(record(tmp_path / "busy", busy), model_bytes=1e7).notes[0]
    idle = calibrate(record(tmp_path / "idle", KNOWN), model_bytes=1e7)
    assert not any("other programs" in note for note in idle.notes)


def test_a_small_model_shows_the_cost_of_a_call(tmp_path: Path) -> None:
    known = Cluster(
        model_bytes=1e4, compute=Compute(seconds=0.05), operation_seconds=0.003, intra_node=NetworkLink(0.0, 1e12)
    )
    cluster = calibrate(record(tmp_path / "run", known), model_bytes=1e4).cluster
    assert cluster.operation_seconds == pytest.approx(0.003, rel=0.05)
    assert 1e4 / cluster.copy_bandwidth < 1e-4


def test_an_uneven_pair_is_described_as_one(tmp_path: Path) -> None:
    slow = Cluster(model_bytes=1e6, compute=Compute(seconds=0.05, slowness=[1.0, 3.0]))
    found = calibrate(record(tmp_path / "run", slow), model_bytes=1e6)
    one, other = found.cluster.compute.slowness
    assert other / one == pytest.approx(3.0, rel=0.05)
    assert any("learners differ" in note for note in found.notes)


def test_durations_as_they_were(tmp_path: Path) -> None:
    found = calibrate(record(tmp_path / "run", KNOWN), model_bytes=1e7, trace=20)
    assert len(found.cluster.compute.trace) == 20
    assert math.fsum(found.cluster.compute.trace) / 20 == pytest.approx(0.05, rel=0.1)


def test_too_short_or_missing_records(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 10 of each learner"):
        calibrate(record(tmp_path / "short", KNOWN, steps=5), model_bytes=1e7)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="there is none"):
        calibrate(tmp_path / "empty")
    with pytest.raises(DataError, match=r"the model size is unknown"):
        calibrate(record(tmp_path / "bare", KNOWN))


def test_a_half_written_line_does_no_harm(tmp_path: Path) -> None:
    run = record(tmp_path / "run", KNOWN)
    with (run / "record.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event":"step","member":"lear')
    assert calibrate(run, model_bytes=1e7).cluster.compute.seconds == pytest.approx(0.05, rel=0.03)
