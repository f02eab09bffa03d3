"""What ``--faults`` says is read, checked, and done to a simulated cluster."""

from __future__ import annotations

import math

import pytest

from roundelay.errors import SettingsError
from roundelay.runtimes.cluster import Cluster, Fault, NetworkPartition, Stop, Straggler
from roundelay.runtimes.fault_plan import FaultPlan, PlannedFault, parse


def test_events_are_read() -> None:
    events = parse(
        "kill 1 at 30s; stop 2 for 10s at 500ms; slow 0 x5 ;; isolate 1,2 for 1m at 2; kill server 0 at 1h;", 3, 1
    )
    assert events == [
        PlannedFault("kill", (1,), 30.0),
        PlannedFault("stop", (2,), 0.5, 10.0),
        PlannedFault("slow", (0,), factor=5.0),
        PlannedFault("isolate", (1, 2), 2.0, 60.0),
        PlannedFault("kill", (0,), 3600.0, server=True),
    ]
    assert [event.ranks(1) for event in events] == [[2], [3], [1], [2, 3], [0]]


def test_an_event_reads_as_it_is_written() -> None:
    for text in ("kill 1 at 30s", "stop 2 for 10s at 5s", "slow 0 x5 for 60s at 5s", "kill server 0 at 2s"):
        assert [str(event) for event in parse(text, 3, 1)] == [text]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no fault is given"),
        ("kil 1 at 3s", "did you mean 'kill'"),
        ("kill at 3s", "name the learner"),
        ("kill one", "name the learner"),
        ("kill 1 at soon", "'soon' is no duration"),
        ("kill 1 after 3s", "'after' is none of"),
        ("kill 1 at", "'at' is none of"),
        ("stop 1 at 3s", "say for how long"),
        ("isolate 1", "say for how long"),
        ("slow 1", "takes a factor"),
        ("slow 1 x0.5", "at least 1"),
        ("kill 1 x5", "takes a factor"),
        ("kill 4 at 3s", "use a learner from 0 to 3"),
        ("kill server 0 at 3s", "there are no servers"),
    ],
)
def test_what_is_wrong_is_said(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        parse(text, 4)


def test_a_simulated_cluster_is_disturbed() -> None:
    text = "kill server 0 at 1s; kill 1 at 2s; kill 1 at 3s; stop 2 for 4s at 5s; "
    text += "slow 0 x5 at 6s for 1s; isolate 0,1 for 2s"
    cluster = FaultPlan(parse(text, 3, 1), servers=1, rejoins=1, heartbeat_timeout=2.0).apply(Cluster())
    assert cluster.faults == [Fault(-1, 1.0, 0.5), Fault(1, 2.0, 0.5), Fault(1, 3.0, None)]
    assert cluster.stops == [Stop(2, 5.0, 4.0)]
    assert cluster.stragglers == [Straggler(0, 5.0, 6.0, 7.0, announce=True)]
    assert cluster.partitions == [NetworkPartition([0, 1], 0.0, 2.0)]
    assert cluster.heartbeat_timeout == 2.0
    assert FaultPlan().apply(Cluster(heartbeat_timeout=7.0)) == Cluster(heartbeat_timeout=7.0)
    always = FaultPlan(parse("slow 0 x5", 3)).apply(Cluster()).stragglers[0]
    assert math.isinf(always.end_seconds)


def test_an_event_that_never_happened_is_an_error() -> None:
    faults = FaultPlan(parse("kill 1 at 2s; stop 2 for 1s at 5s", 3), rejoins=1)
    faults.check([Fault(1, 2.0, 0.5), Stop(2, 5.0, 1.0)], 9.0)
    with pytest.raises(SettingsError, match=r"stop 2 for 1s at 5s never happened: the run ended after 4.5 s"):
        faults.check([Fault(1, 2.0, 0.5)], 4.5)
