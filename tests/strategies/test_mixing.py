"""Mixing matrices by construction, in real strategies, and the one operation by which strategies mix."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Awaitable, Generator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from roundelay.communicator import Communicator
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster, NetworkLink
from roundelay.strategies import ADPSGD, DPSGD, SGP, Averaging, GossipPGA, RandomADPSGD
from roundelay.strategies.mixing import MatrixMixing, Mixing, check_matrix
from roundelay.strategies.topologies import TOPOLOGIES, FixedGraph, Ring, find_topology
from roundelay.strategy import Strategy
from roundelay.theory.consensus import consensus, curve
from tiny_jobs import sgd, simulated, tiny_job

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 33)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_whoever_sends_is_heard_and_the_mean_is_kept(name: str, size: int) -> None:
    topology = find_topology(name, seed=3).or_fallback(size)
    mixing = Mixing(topology)
    mixing.check(size)
    for iteration in range(8):
        links = [topology.links(rank, size, iteration) for rank in range(size)]
        sent = sorted((rank, link.to) for rank in range(size) for link in links[rank])
        heard = sorted((link.source, rank) for rank in range(size) for link in links[rank])
        assert sent == heard
        assert len(set(sent)) == len(sent)
        assert all(source != target for source, target in sent)
        check_matrix(mixing.matrix(size, iteration))
        check_matrix(Mixing(topology, "metropolis").matrix(size, iteration))


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_all_come_together_whatever_their_number(name: str) -> None:
    for size in SIZES[1:]:
        mixing = Mixing(find_topology(name, seed=1).or_fallback(size))
        assert curve(mixing, size, 40 + size * size)[-1] < 0.02, size


# -- what does not fit -----------------------------------------------------------------------------------------------


def test_a_matrix_that_would_not_keep_the_mean_is_named_by_row_and_sum() -> None:
    with pytest.raises(SettingsError, match=r"row 1 sums to 0\.9, not 1"):
        MatrixMixing(((0.5, 0.5), (0.5, 0.4))).check(2)
    with pytest.raises(SettingsError, match=r"column 0 sums to 1\.5, not 1"):
        check_matrix([[1.0, 0.0], [0.5, 0.5]])
    with pytest.raises(SettingsError, match=r"entry \(0, 1\) is -0\.5"):
        check_matrix([[1.5, -0.5], [-0.5, 1.5]])
    with pytest.raises(SettingsError, match="not symmetric"):
        MatrixMixing(((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0))).check(3)
    with pytest.raises(SettingsError, match="is for 2 learners, not 3"):
        MatrixMixing(((0.5, 0.5), (0.5, 0.5))).check(3)
    with pytest.raises(SettingsError, match="has 2 rows, and row 1 has 1 entries"):
        MatrixMixing(((0.5, 0.5), (1.0,))).check(2)
    with pytest.raises(SettingsError, match="must be square"):
        check_matrix([[1.0, 0.0]])


def test_a_star_needs_metropolis_shares() -> None:
    star = FixedGraph(((0, 1), (0, 2), (0, 3)))
    with pytest.raises(SettingsError, match=r"uniform shares on topology 'graph': column 0 sums to 1\.75"):
        Mixing(star).check(4)
    Mixing(star, "metropolis").check(4)
    assert Mixing(star, "metropolis").matrix(4)[1].tolist() == [0.25, 0.75, 0.0, 0.0]
    given = MatrixMixing(((0.25, 0.25, 0.25, 0.25), (0.25, 0.75, 0, 0), (0.25, 0, 0.75, 0), (0.25, 0, 0, 0.75)))
    given.check(4)
    assert given.shares(1, 4) == Mixing(star, "metropolis").shares(1, 4)
    assert consensus(given, 4).contraction == pytest.approx(0.75)


# -- in real strategies ----------------------------------------------------------------------------------------------


def spreads(strategy: Strategy, learners: int, steps: int) -> list[float]:
    """Scatter the weights, let ``strategy`` run at rate 0, and return the distance from the mean after each step."""
    history: dict[int, list[Tensor]] = {}

    class Scattered(type(strategy)):  # type: ignore[misc]  # any strategy
        def setup(self, learner: Learner) -> None:
            generator = torch.Generator().manual_seed(learner.comm.rank)
            learner.weights.copy_(torch.randn(learner.weights.shape, generator=generator))
            history[learner.comm.rank] = [learner.weights.clone()]
            super().setup(learner)

        async def step(self, learner: Learner) -> None:
            await super().step(learner)
            history[learner.comm.rank].append(learner.weights.clone())

    fields: dict[str, Any] = vars(strategy)
    task = {"frames_per_epoch": learners * steps, "batch": 1, "features": 30, "hidden": [40]}
    cluster = Cluster(intra_node=NetworkLink(1e-6, 1e12))
    job = tiny_job(Scattered(**fields), minibatches=learners * steps, optimizer=sgd(0.0), task=task)
    simulated(job, learners, cluster)
    stacked = [torch.stack([history[rank][k] for rank in range(learners)]).double() for k in range(steps + 1)]
    return [float((x - x.mean(0)).norm()) for x in stacked]


@pytest.mark.parametrize("strategy", [DPSGD(), ADPSGD(), GossipPGA(period=1000), SGP(topology="ring")])
def test_strategies_on_a_ring_contract_as_the_ring_does(strategy: Strategy) -> None:
    seen = spreads(strategy, 8, 24)
    assert seen[-1] / seen[-2] == pytest.approx(0.8047, rel=0.01)


@pytest.mark.parametrize("strategy", [DPSGD(topology="exponential"), SGP(), Averaging(period=1, topology="butterfly")])
def test_strategies_on_one_peer_graphs_meet_after_log2_rounds(strategy: Strategy) -> None:
    seen = spreads(strategy, 8, 3)
    assert seen[2] > 0.1 * seen[0]
    assert seen[3] < 1e-5 * seen[0]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [DPSGD(topology="random-ring"), RandomADPSGD()])
def test_strategies_on_random_rings_contract_as_the_table_says(strategy: Strategy) -> None:
    squares: list[float] = []
    for seed in range(6):
        seen = spreads(type(strategy)(**(vars(strategy) | {"seed": seed})), 16, 8)
        squares += [(after / before) ** 2 for before, after in itertools.pairwise(seen)]
    assert math.sqrt(sum(squares) / len(squares)) == pytest.approx(0.538, rel=0.04)  # 48 draws


# -- the one operation by which strategies mix -----------------------------------------------------------------------


class Arrived(Awaitable[Tensor]):
    """A tensor that is there already."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __await__(self) -> Generator[Any, Any, Tensor]:
        yield from ()
        return self.x


class Peers:
    """Rank 1 of three; the weights of rank k are all 10^k."""

    rank, size = 1, 3

    def __init__(self) -> None:
        self.sent: list[tuple[int, float]] = []

    def exchange(self, x: Tensor, to: int, source: int) -> Arrived:
        self.sent.append((to, float(x[0])))
        return Arrived(torch.full_like(x, 10.0**source))


def learner_among_peers() -> tuple[Learner, Peers]:
    learner, peers = Learner(nn.Linear(1, 1, bias=False)), Peers()
    learner.comm = cast("Communicator", peers)
    learner.weights.fill_(10.0)
    return learner, peers


def awaited(operation: Awaitable[Tensor]) -> float:
    async def wait() -> Tensor:
        return await operation

    try:
        wait().send(None)
    except StopIteration as stop:
        return float(stop.value[0])
    raise AssertionError("nothing to wait for")


def test_exchanges_start_at_once_and_the_sum_comes_with_the_await() -> None:
    learner, peers = learner_among_peers()
    mixed = Mixing(Ring()).mix(learner)
    assert peers.sent == [(0, 10.0), (2, 10.0)]
    assert float(learner.weights[0]) == 10.0
    assert awaited(mixed) == pytest.approx((10.0 + 1.0 + 100.0) / 3)
    assert float(learner.weights[0]) == pytest.approx((10.0 + 1.0 + 100.0) / 3)


def test_the_iteration_chooses_the_peers() -> None:
    learner, peers = learner_among_peers()
    assert awaited(Mixing(find_topology("hopping-ring")).mix(learner, 1)) == (10.0 + 100.0) / 2  # 2 ranks before: 2
    assert peers.sent == [(0, 10.0)]


def test_a_given_matrix_is_applied() -> None:
    learner, _ = learner_among_peers()
    matrix = MatrixMixing(((0.5, 0.5, 0.0), (0.5, 0.25, 0.25), (0.0, 0.25, 0.75)))
    assert awaited(matrix.mix(learner)) == 0.5 * 1.0 + 0.25 * 10.0 + 0.25 * 100.0


def test_one_learner_mixes_with_itself() -> None:
    learner, peers = learner_among_peers()
    peers.rank, peers.size = 0, 1
    assert awaited(Mixing(Ring()).mix(learner)) == 10.0
    assert not peers.sent


def test_a_mixing_may_be_left_unawaited() -> None:
    learner, _ = learner_among_peers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Mixing(Ring()).mix(learner)
