"""The parameter server by hand; its shards, barrier, damping, schedule and momentum."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch

from quadratic_task import walk
from roundelay.errors import SettingsError
from roundelay.optim.schedules import ExponentialDecay
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Compute
from roundelay.strategies import ASGD, Synchronous, UpdatesASGD
from roundelay.strategy import Strategy
from roundelay.training.loop import Job
from tiny_jobs import adamw, sgd, simulated, tiny_job


def figures(job: Job, learners: int, name: str, cluster: Cluster | None = None) -> list[float]:
    file = io.StringIO()
    simulated(job, learners, cluster, record=Record(file, clock="virtual"))
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    return [line[name] for line in lines if line["event"] == "step"]


def test_two_steps_by_hand() -> None:
    # learner 0 pushes 0 - 4: w = 2, which it pulls; learner 1 pushes 0 - 8: w = 6
    # learner 0 pushes 2 - 0: w = 5; learner 1 pushes 6 - 16: w = 10
    path = walk(ASGD(), [4, 8, 0, 16], 2)
    assert path.weights == {0: [2, 5], 1: [6, 10]}
    assert path.consensus == 10


def test_staleness_is_what_others_applied_meanwhile() -> None:
    job = tiny_job(ASGD(), minibatches=40)
    assert figures(job, 1, "staleness") == [0.0] * 40
    assert figures(job, 4, "staleness") == [0, 1, 2] + [3] * 37


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("optimizer", [sgd(0.05, 0.9), adamw()])
def test_shards_take_the_steps_of_one_server(servers: int, optimizer: Any) -> None:
    one = simulated(tiny_job(ASGD(), optimizer=optimizer), 3)
    many = simulated(tiny_job(ASGD(servers=servers), optimizer=optimizer), 3)
    assert torch.equal(one.consensus, many.consensus)


@pytest.mark.parametrize("strategy", [ASGD(), ASGD(servers=2), ASGD(staleness_bound=1)])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_one_learner_equals_sgd_under_a_schedule(strategy: Strategy, clip: float | None) -> None:
    settings: dict[str, Any] = {"schedule": lambda: ExponentialDecay(960.0), "optimizer": sgd(0.1, 0.9), "clip": clip}
    plain = simulated(tiny_job(Synchronous(), **settings), 1)
    served = simulated(tiny_job(strategy, **settings), 1)
    if clip is None or strategy.servers == 1:
        assert torch.equal(plain.consensus, served.consensus)
    else:  # clipped as a whole by the learner, so that there is little left to do for the servers
        assert torch.allclose(plain.consensus, served.consensus, atol=1e-6)


def test_the_server_counts_on_after_a_warmup() -> None:
    job = tiny_job(ASGD(), budget={"warmup": 20}, minibatches=60)
    assert simulated(job, 2).trainings[0].learner.minibatch == 60


def test_barrier_bounds_how_far_a_learner_gets_ahead() -> None:
    slow = Cluster(compute=Compute(slowness=[1.0, 1.0, 1.0, 20.0]))
    free = figures(tiny_job(ASGD(), minibatches=80), 4, "staleness", slow)
    bound = figures(tiny_job(ASGD(staleness_bound=2), minibatches=80), 4, "staleness", slow)
    # Each of three others may push twice before the slowest pushes, and twice more before it has pulled and pushed.
    assert max(bound) <= 9 < max(free)


def test_damping_divides_the_rate_by_the_staleness() -> None:
    # as by hand above with three learners: 4 at rate 1/2, then 8 (staleness 1), then 6 (staleness 2) at rate 1/4
    assert walk(ASGD(damping=1.0), [4, 8, 6], 3).consensus == 2 + 4 + 1.5


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (ASGD(servers=0), "servers must be at least 1, not 0"),
        (ASGD(servers=9), "servers = 9 is more than the tensors"),
        (ASGD(staleness_bound=0), "staleness_bound must be at least 1, not 0"),
        (ASGD(damping=-1.0), "damping must be at least 0, not -1.0"),
        (UpdatesASGD(period=0), "period must be at least 1, not 0"),
        (UpdatesASGD(rate=0.0), "rate must be above 0, not 0.0"),
        (UpdatesASGD(momentum=1.0), "momentum must be at least 0 and below 1, not 1.0"),
    ],
)
def test_refuses(strategy: ASGD, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        simulated(tiny_job(strategy), 2)
