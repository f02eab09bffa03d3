"""The simulated cluster as a whole."""

from __future__ import annotations

import io
import time

import pytest
import torch

from roundelay.errors import SettingsError
from roundelay.planning.timing_simulation import time_only
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink, Straggler
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy
from small_strategies import STRATEGIES, Gossip, Server
from tiny_jobs import simulated, tiny_job


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_same_seed_same_record_byte_for_byte(strategy: Strategy) -> None:
    def record(seed: int) -> str:
        text = io.StringIO()
        cluster = Cluster(nodes=2, learners_per_node=3, compute=Compute(jitter=0.3))
        simulated(
            tiny_job(strategy, seed=seed, task={"dropout": 0.2}), 6, cluster, record=Record(text, clock="virtual")
        )
        return text.getvalue()

    assert record(1) == record(1)
    assert record(1) != record(2)


def test_other_orders_of_ties_can_be_explored() -> None:
    weights = [simulated(tiny_job(Gossip()), 4, shuffle=seed).consensus for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    plain = simulated(tiny_job(Synchronous()), 4).consensus
    assert torch.equal(plain, simulated(tiny_job(Synchronous()), 4, shuffle=3).consensus)  # a barrier hides any order


@pytest.mark.slow
def test_128_learners_train_within_minutes() -> None:
    begin = time.monotonic()
    outcome = simulated(tiny_job(Gossip(), minibatches=128 * 40, task={"frames_per_epoch": 128 * 160}), 128)
    assert outcome.trainings[0].scores["loss"] < 1.4  # it begins at 1.7
    assert time.monotonic() - begin < 120


def test_a_servers_link_is_the_bottleneck_that_it_is() -> None:
    def seconds(learners: int) -> float:
        cluster = Cluster(
            nodes=learners,
            learners_per_node=1,
            model_bytes=1e8,
            inter_node=NetworkLink(0.0, 1e9),
            compute=Compute(seconds=0.1),
        )
        return time_only(Server(), cluster, learners=learners, steps=20).seconds

    # A gradient in and weights out, 0.1 s each on a link that works both ways at once: 10 steps a second for all.
    assert seconds(2) == pytest.approx(20 * (0.1 + 0.2 + 0.02), rel=0.15)
    assert seconds(16) == pytest.approx(16 * 20 * 0.1, rel=0.1)
    assert seconds(32) == pytest.approx(2 * seconds(16), rel=0.05)


def test_timing_only_takes_as_long_as_training() -> None:
    cluster = Cluster(nodes=8, learners_per_node=1, model_bytes=4e6, compute=Compute(seconds=0.1, jitter=0.2))
    for strategy in (Synchronous(), Averaging(period=2), Gossip()):
        real = simulated(tiny_job(strategy, minibatches=160, task={"frames_per_epoch": 160 * 16}), 8, cluster).seconds
        timed = time_only(strategy, cluster, learners=8, steps=20).seconds
        assert timed == pytest.approx(real, rel=0.01)


def test_timing_only_shows_the_straggler() -> None:
    slow = Cluster(stragglers=[Straggler(5, 10.0)], compute=Compute(seconds=0.1))
    assert time_only(Synchronous(), slow, learners=64, steps=20).seconds == pytest.approx(20.0, rel=0.05)
    assert time_only(Gossip(), slow, learners=64, steps=20).seconds < 3.1


def test_thousands_of_learners() -> None:
    cluster = Cluster(nodes=250, learners_per_node=8, model_bytes=1.65e8)
    assert time_only(Averaging(), cluster, learners=2000, steps=10).seconds > 1.0


def test_no_learners() -> None:
    with pytest.raises(SettingsError, match="learners must be at least 1, not 0"):
        simulated(tiny_job(Synchronous()), 0)
