"""A strategy simulated for its time only."""

from __future__ import annotations

import gc

import pytest

from roundelay.errors import SettingsError
from roundelay.planning.timing_simulation import TotalsRecord, time_only
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.strategies import ADPSGD, Averaging, Synchronous

CLUSTER = Cluster(
    model_bytes=8e6, compute=Compute(seconds=0.1, jitter=0.0), intra_node=NetworkLink(0.0, 1e9), copy_bandwidth=1e12
)


def test_lockstep_takes_compute_and_a_ring_of_messages() -> None:
    seconds = time_only(Synchronous(), CLUSTER, learners=4, steps=10).seconds
    assert seconds == pytest.approx(10 * (0.1 + 2 * 3 / 4 * 8e6 / 1e9), rel=0.02)


def test_averaging_less_often_is_faster() -> None:
    often, rarely = (time_only(Averaging(period=k), CLUSTER, learners=4, steps=20).seconds for k in (1, 10))
    assert rarely < often
    assert rarely > 20 * 0.1


def test_totals_count_steps_and_spans() -> None:
    record = TotalsRecord(marks=(4, 8))
    time_only(Synchronous(), CLUSTER, learners=2, steps=5, record=record)
    assert len(record.steps) == 10
    assert sorted(set(record.members)) == ["learner 0", "learner 1"]
    assert len(record.snapshots) == 2
    assert record.snapshots[0].time <= record.snapshots[1].time
    totals = record.totals["learner 0"]
    assert totals["compute"] == pytest.approx(0.5)
    assert totals["compute count"] == 5


@pytest.mark.parametrize("strategy", [Synchronous(), ADPSGD()])
def test_the_garbage_collector_is_on_again(strategy: Synchronous | ADPSGD) -> None:
    assert gc.isenabled()
    time_only(strategy, CLUSTER, learners=2, steps=2)
    assert gc.isenabled()
    with pytest.raises(SettingsError):
        time_only(ADPSGD(share=2.0), CLUSTER, learners=2, steps=2)
    assert gc.isenabled()
