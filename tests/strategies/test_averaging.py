"""Model averaging by hand; with some instead of all; what becomes of the optimizer's state."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch

from quadratic_task import walk
from roundelay.errors import SettingsError
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Fault
from roundelay.strategies import Averaging
from roundelay.training.loop import Training
from tiny_jobs import sgd, simulated, tiny_job


def test_two_periods_by_hand() -> None:
    # alone, half of the way to 4 then 0: 2, 1; to 8 then 16: 4, 10; their mean 5.5
    # then to 0 and to 1: 2.75 and 3.25, to 0 and to 1 again: 1.375 and 2.125, mean 1.75
    path = walk(Averaging(period=2), [4, 8, 0, 16, 0, 1, 0, 1], 2)
    assert path.weights == {0: [2, 5.5, 2.75, 1.75], 1: [4, 5.5, 3.25, 1.75]}


def test_weighs_by_frames() -> None:
    # 2 with 1 frame and 4 with 3: (2 + 12)/4
    assert walk(Averaging(period=1), [4, 8], 2, task={"counts": [1, 3]}).weights[0] == [3.5]


def test_a_period_in_frames_is_rounded_up_to_minibatches() -> None:
    job = tiny_job(Averaging(period_frames=33))  # minibatches have 16 frames
    strategy: Any = simulated(job, 2).trainings[0].strategy
    assert strategy.period_steps == 3
    assert strategy.rounds == 30 // 3


def test_butterfly_reaches_the_mean_in_two_rounds() -> None:
    # after the first step 1, 2, 3, 4; round 0 with rank ^ 1: 1.5, 1.5, 3.5, 3.5
    # the targets are where they are, so the second step moves nobody; round 1 with rank ^ 2: all 2.5
    path = walk(Averaging(period=1, topology="butterfly"), [2, 4, 6, 8, 1.5, 1.5, 3.5, 3.5], 4)
    assert [path.weights[learner] for learner in range(4)] == [[1.5, 2.5], [1.5, 2.5], [3.5, 2.5], [3.5, 2.5]]


def test_hopping_ring_goes_one_place_further_each_time() -> None:
    # after the first step 1, 2, 3; each with the one before it: 2, 1.5, 2.5
    # nobody moves; each with the second before it, i.e. the next one: (2 + 1.5)/2, (1.5 + 2.5)/2, (2.5 + 2)/2
    path = walk(Averaging(period=1, topology="hopping-ring"), [2, 4, 6, 2, 1.5, 2.5], 3)
    assert [path.weights[learner] for learner in range(3)] == [[2, 1.75], [1.5, 2], [2.5, 2.25]]


def test_ring_averages_with_the_learner_before() -> None:
    # after the first step 1, 2, 3, 4, 5: half of one's own, half of the rank before
    path = walk(Averaging(period=1, topology="ring"), [2, 4, 6, 8, 10], 5)
    assert [path.weights[learner][0] for learner in range(5)] == [3, 1.5, 2.5, 3.5, 4.5]


def test_a_period_that_ends_early_weighs_by_frames() -> None:
    # one step of a period of ten: 2 with 1 frame and 4 with 3: (2 + 12)/4
    assert walk(Averaging(period=10), [4, 8], 2, task={"counts": [1, 3]}).consensus == 3.5


def test_a_finished_period_is_averaged_once() -> None:
    path = walk(Averaging(period=1), [4, 8], 2, task={"counts": [1, 3]})
    assert path.consensus == path.weights[0][-1] == 3.5


def _momenta(training: Training) -> torch.Tensor:
    return torch.cat([moment.reshape(-1) for moment in training.learner.moments()])


@pytest.mark.parametrize("how", ["keep", "average", "reset"])
def test_optimizer_state(how: Any) -> None:
    job = tiny_job(Averaging(period=5, optimizer_state=how), minibatches=10, optimizer=sgd(0.05, 0.9))
    one, other = (_momenta(training) for training in simulated(job, 2).trainings)
    assert torch.equal(one, other) == (how != "keep")
    assert bool(one.any()) == (how != "reset")


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (Averaging(period=0), "period must be at least 1, not 0"),
        (Averaging(period_frames=0), "period_frames must be at least 1, not 0"),
        (Averaging(topology="butterfly"), "'butterfly' needs a power of two learners, not 6"),
        (Averaging(topology="ring", optimizer_state="average"), "'average' needs all-reduce, not 'ring'"),
    ],
)
def test_refuses(strategy: Averaging, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        simulated(tiny_job(strategy), 6)


def test_butterfly_goes_on_after_a_loss() -> None:
    file = io.StringIO()
    cluster = Cluster(faults=[Fault(learner=1, at_seconds=0.55)])
    job = tiny_job(Averaging(period=1, topology="butterfly"))
    simulated(job, 4, cluster, record=Record(file, clock="virtual"))
    events = [json.loads(line) for line in file.getvalue().splitlines()]
    forms = [event["note"] for event in events if event["event"] == "fallback"]
    assert forms == ["butterfly does not fit 3 learners: exponential instead"]
    assert {event["minibatch"] for event in events if event["event"] == "step"} == set(range(60))
