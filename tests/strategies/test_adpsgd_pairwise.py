"""AD-PSGD in pairs, by hand and after a loss."""

from __future__ import annotations

import io
import json

from quadratic_task import walk
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Fault
from roundelay.strategies import PairwiseADPSGD
from tiny_jobs import simulated, tiny_job


def test_two_steps_in_pairs_by_hand() -> None:
    # step 1: 2 and 4.  Step 2: learner 0 sends 2, learner 1 takes off (4 - 2)/2, learner 0 adds it: both at 3;
    # 3 - 2/2 = 2 and 3 + 12/2 = 9
    assert walk(PairwiseADPSGD(), [4, 8, 0, 16], 2).weights == {0: [2, 2], 1: [4, 9]}


def test_pairs_go_on_after_a_loss() -> None:
    file = io.StringIO()
    cluster = Cluster(faults=[Fault(learner=3, at_seconds=0.55)])
    simulated(tiny_job(PairwiseADPSGD()), 4, cluster, record=Record(file, clock="virtual"))
    events = [json.loads(line) for line in file.getvalue().splitlines()]
    assert ["3 learners do not pair up" in event["note"] for event in events if event["event"] == "fallback"] == [True]
    assert {event["minibatch"] for event in events if event["event"] == "step"} == set(range(60))
