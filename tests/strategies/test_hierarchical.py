"""Nodes of learners by hand; unequal nodes; servers outside; losses."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import torch
from torch import nn

from quadratic_task import Point, Quadratic, walk
from roundelay.config import build_named, dump
from roundelay.errors import SettingsError
from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Compute, Fault, NetworkLink
from roundelay.strategies import ADPSGD, ASGD, BMUF, EASGD, STRATEGIES, Averaging, Hierarchical, Synchronous
from roundelay.strategy import Strategy
from tiny_jobs import simulated, tiny_job


def test_two_steps_by_hand() -> None:
    # mean gradients at 0: (-4 - 8)/2 and (0 - 16)/2: nodes at 3 and 4
    # two nodes mix to 3.5; gradients at 3 and 4 to 0: 3.5 - 1.5 and 3.5 - 2
    path = walk(Hierarchical(), [4, 8, 0, 16, 0, 0, 0, 0], 4)
    assert path.weights == {0: [3, 2], 1: [3, 2], 2: [4, 1.5], 3: [4, 1.5]}
    assert path.consensus == 1.75


def test_a_parameter_server_has_a_rank_of_its_own() -> None:
    # the node of one learner is first, having nobody to average with: it takes 6: w = 3; the other node 4 and 8: w = 6
    # node 1 at 3 takes 1: w = 6 - 1 = 5; node 0 at 6 takes 0 and 4: w = 5 - 2 = 3
    path = walk(Hierarchical(outer=ASGD(), learners_per_node=[2, 1]), [4, 8, 6, 1, 0, 4], 3)
    assert path.weights == {0: [6, 3], 1: [6, 3], 2: [3, 5]}
    assert len(path.outcome.trainings) == 4
    assert path.consensus == 3


def test_unequal_nodes_weigh_as_many_learners() -> None:
    # gradients: node 0 means 4 and 8, node 1 has 0: synchronous outside is synchronous over all learners
    nodes = Hierarchical(outer=Synchronous(), learners_per_node=[2, 1])
    assert walk(nodes, [4, 8, 0], 3).consensus == pytest.approx(walk(Synchronous(), [4, 8, 0], 3).consensus)
    # weights: node 0 at 3, node 1 at 0, mean (2 * 3 + 0)/3
    outer = BMUF(block=1, momentum=0.0)
    assert walk(Hierarchical(outer=outer, learners_per_node=[2, 1]), [4, 8, 0], 3).consensus == pytest.approx(2)
    assert walk(Hierarchical(outer=Averaging(period=1), learners_per_node=[2, 1]), [4, 8, 0], 3).consensus == (
        pytest.approx(2)
    )


@pytest.mark.parametrize("learners", [1, 3, 5, 6])
@pytest.mark.parametrize(
    "outer", [ADPSGD(), Synchronous(), EASGD(period=2), ASGD(servers=2, staleness_bound=1), BMUF(block=3)]
)
def test_any_strategy_outside_and_any_number_of_learners(outer: Strategy, learners: int) -> None:
    file = io.StringIO()
    outcome = simulated(tiny_job(Hierarchical(outer=outer)), learners, record=Record(file, clock="virtual"))
    steps = [line for line in map(json.loads, file.getvalue().splitlines()) if line["event"] == "step"]
    assert sorted(line["minibatch"] for line in steps) == list(range(60))
    assert outcome.trainings[-1].scores["loss"] < 1.6


def test_a_node_goes_at_its_own_pace() -> None:
    # minibatches are claimed two at a time by each node, and the slow node takes fewer of them
    path = walk(Hierarchical(), [0.0] * 40, 4, slowness=[1, 1, 1, 4])
    assert len(path.weights[0]) == len(path.weights[1]) > 2 * len(path.weights[2])
    assert len(path.weights[2]) == len(path.weights[3])
    assert path.outcome.seconds < 2.0


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("outer", [ADPSGD(), ASGD(), BMUF(block=3)])
def test_goes_on_without_a_leader_and_without_a_follower(outer: Strategy, lost: int) -> None:
    file, cluster = io.StringIO(), Cluster(faults=[Fault(learner=lost, at_seconds=0.55)])
    simulated(tiny_job(Hierarchical(outer=outer)), 4, cluster, record=Record(file, clock="virtual"))
    steps = [line for line in map(json.loads, file.getvalue().splitlines()) if line["event"] == "step"]
    assert {line["minibatch"] for line in steps} == set(range(60))


@pytest.mark.parametrize(("outer", "apart"), [(ADPSGD(), True), (Synchronous(), False)])
def test_a_leader_may_take_its_gradient_one_mixing_ahead_of_its_node(
    outer: Strategy, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    points: dict[float, float] = {}  # where the gradient of each minibatch, known by its target, was taken
    plain = Quadratic.loss

    def loss(task: Quadratic, module: nn.Module, batch: float) -> torch.Tensor:
        assert isinstance(module, Point)
        points[batch] = float(module.w[0].detach())
        return plain(task, module, batch)

    monkeypatch.setattr(Quadratic, "loss", loss)
    slow = NetworkLink(latency_seconds=0.05)  # a request may arrive during the broadcast
    cluster = Cluster(nodes=2, intra_node=slow, compute=Compute(slowness=[1, 1, 1.37, 1.37]))
    path = walk(Hierarchical(outer=outer), [float(k) for k in range(40)], 4, cluster=cluster)
    taken = [(points[k], points[k + 1]) for k in map(float, range(0, 40, 2))]  # a node's two minibatches
    assert any(leader != follower for leader, follower in taken) is apart
    broadcast = {0.0, *(each for weights in path.weights.values() for each in weights)}
    assert all(follower in broadcast for _, follower in taken)


def test_settings_nest() -> None:
    table = {"name": "hierarchical", "outer": {"name": "bmuf", "block": 7}, "learners_per_node": [1, 2]}
    strategy: Any = build_named(STRATEGIES, table, "strategy")
    assert (strategy.outer.block, strategy.learners_per_node) == (7, [1, 2])
    assert 'name = "bmuf"' in dump(strategy)


@pytest.mark.parametrize(
    ("strategy", "complaint"),
    [
        (Hierarchical(learners_per_node=[2, 1]), r"\[2, 1\] has room for 3 learners, not 4"),
        (Hierarchical(learners_per_node=0), "learners_per_node must be at least 1, not 0"),
        (Hierarchical(learners_per_node=[4, 0]), r"at least 1, not \[4, 0\]"),
        (Hierarchical(outer=BMUF(momentum=1.0)), "momentum must be at least 0 and below 1, not 1.0"),
        (Hierarchical(outer=Averaging(topology="butterfly"), learners_per_node=[1, 2, 1]), "power of two .*, not 3"),
    ],
)
def test_refuses(strategy: Hierarchical, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        simulated(tiny_job(strategy), 4)


def test_members_of_a_node_hold_the_leaders_weights() -> None:
    outcome = simulated(tiny_job(Hierarchical(outer=EASGD(period=1))), 4)
    weights = [training.learner.weights for training in outcome.trainings[1:]]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[0], weights[2])
