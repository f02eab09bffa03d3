"""Topologies and mixing matrices: what they are by construction, by formula, by measurement, and in real strategies."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster, NetworkLink
from roundelay.strategies import ADPSGD, DPSGD, SGP, Averaging, GossipPGA, RandomADPSGD
from roundelay.strategies.mixing import MatrixMixing, Mixing, check_matrix
from roundelay.strategies.topologies import (
    TOPOLOGIES,
    Bipartite,
    ExponentialGraph,
    FixedGraph,
    Ring,
    find_topology,
)
from roundelay.strategy import Strategy
from roundelay.theory.consensus import consensus, curve, formula, measure, noise_gain, pairwise, steps_to, together
from support import sgd, simulated, tiny_job

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 33)

# The table of the literature: learners, second eigenvalue of the ring, steps to 1 %, rms contraction of the random ring
# and its steps.
TABLE = (
    (4, 0.3333, 4.2, 0.333, 4.2),
    (8, 0.8047, 21, 0.488, 6.4),
    (16, 0.9493, 88, 0.538, 7.4),
    (32, 0.9872, 357, 0.558, 7.9),
    (64, 0.9968, 1432, 0.568, 8.1),
    pytest.param(128, 0.9992, 5732, 0.573, 8.3, marks=pytest.mark.slow),
)


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


def test_a_random_ring_is_drawn_alike_by_everyone_and_anew_each_time() -> None:
    one, other = find_topology("random-ring", seed=5), find_topology("random-ring", seed=5)
    drawn = [one.neighbours(3, 16, k) for k in range(20)]
    assert drawn == [other.neighbours(3, 16, k) for k in range(20)]
    assert len({tuple(pair) for pair in drawn}) > 10
    assert drawn != [find_topology("random-ring", seed=6).neighbours(3, 16, k) for k in range(20)]


def test_partners_are_the_papers() -> None:
    assert [find_topology("butterfly").neighbours(5, 8, k) for k in range(4)] == [[4], [7], [1], [4]]
    assert [find_topology("hopping-ring").neighbours(0, 4, k) for k in range(4)] == [[3], [2], [1], [3]]
    assert [find_topology("exponential").links(1, 8, k)[0].to for k in range(4)] == [2, 3, 5, 2]
    assert [find_topology("bipartite").neighbours(0, 16, k)[0] for k in range(5)] == [1, 3, 5, 9, 1]
    assert find_topology("ring").neighbours(0, 2) == [1]
    assert find_topology("static-exponential").neighbours(0, 8) == [7, 6, 4]


def test_bipartite_pairs_join_an_active_with_a_passive_learner() -> None:
    for size in (2, 6, 7, 16, 33):
        topology = Bipartite().or_fallback(size)
        for k in range(6):
            for rank in range(size):
                for peer in topology.neighbours(rank, size, k):
                    assert (rank + peer) % 2 == 1
    idle = [rank for k in range(8) for rank in range(7) if not Bipartite(uneven=True).links(rank, 7, k)]
    assert len(idle) == 8
    assert len(set(idle)) > 1
    assert all(rank % 2 == 0 for rank in idle)


# -- what does not fit -----------------------------------------------------------------------------------------------


def test_a_number_of_learners_that_does_not_fit_is_named() -> None:
    with pytest.raises(SettingsError, match="'butterfly' needs a power of two learners, not 6"):
        find_topology("butterfly").check(6)
    with pytest.raises(SettingsError, match="'bipartite' needs an even number of learners, not 7"):
        find_topology("bipartite").check(7)
    with pytest.raises(SettingsError, match="do not connect 4 learners"):
        FixedGraph(((0, 1), (2, 3))).check(4)
    with pytest.raises(SettingsError, match="did you mean 'random-ring'"):
        find_topology("randomring")


def test_after_a_loss_there_is_a_form_that_fits() -> None:
    butterfly, bipartite = find_topology("butterfly"), find_topology("bipartite")
    assert butterfly.or_fallback(8) is butterfly
    assert butterfly.or_fallback(7) == ExponentialGraph()
    assert bipartite.or_fallback(7) == Bipartite(uneven=True)
    assert FixedGraph(((0, 1), (1, 2))).or_fallback(2) == Ring()


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


# -- how fast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "eigenvalue", "steps", "rms", "random_steps"), TABLE)
def test_rings_are_as_fast_as_the_table_says(
    size: int, eigenvalue: float, steps: float, rms: float, random_steps: float
) -> None:
    ring = consensus(Mixing(find_topology("ring")), size)
    assert ring.by_formula
    assert ring.contraction == pytest.approx(eigenvalue, abs=5e-5)
    assert ring.steps == pytest.approx(steps, rel=0.01)
    assert 1 - ring.measured == pytest.approx(ring.gap, rel=0.01)
    across = Mixing(find_topology("ring")).matrix(size) - 1.0 / size
    assert float(torch.linalg.matrix_norm(across, ord=2)) == pytest.approx(ring.contraction, abs=1e-9)
    random = consensus(Mixing(find_topology("random-ring", seed=11)), size)
    assert random.contraction == pytest.approx(rms, abs=6e-4)
    assert random.steps == pytest.approx(random_steps, abs=0.06)
    assert random.measured == pytest.approx(rms, abs=0.02)  # 400 draws


def test_pairwise_gossip_is_as_fast_as_the_table_says() -> None:
    ring = [pairwise(find_topology("ring"), size) for size in (8, 16, 64)]
    complete = [pairwise(find_topology("complete"), size) for size in (8, 16, 64)]
    assert ring == pytest.approx([0.861, 0.963, 0.9976], abs=5e-4)
    assert complete == pytest.approx([0.540, 0.576, 0.599], abs=5e-4)
    generator, square, x = torch.Generator().manual_seed(0), [], torch.eye(8, dtype=torch.float64) - 1 / 8
    for _ in range(3000):  # the mean square over one event, measured
        a, b = torch.randperm(8, generator=generator)[:2].tolist()
        y = x.clone()
        y[a] = y[b] = (x[a] + x[b]) / 2
        square.append(float((y * y).sum() / (x * x).sum()))
    assert sum(square) / len(square) == pytest.approx(0.540 ** (1 / 4), rel=0.01)


@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_these_reach_the_very_mean(size: int) -> None:
    rounds = size.bit_length() - 1
    assert together(Mixing(find_topology("complete")), size) == 1
    assert together(Mixing(find_topology("butterfly")), size) == rounds
    assert together(Mixing(find_topology("exponential")), size) == rounds
    assert together(Mixing(find_topology("ring")), size) is None
    assert consensus(Mixing(find_topology("butterfly")), size).steps == rounds
    assert formula(find_topology("butterfly"), size) == measure(Mixing(find_topology("butterfly")), size) == 0


@pytest.mark.parametrize("name", ["hopping-ring", "exponential", "bipartite", "static-exponential"])
@pytest.mark.parametrize("size", [6, 8, 10, 33])
def test_formula_eigenvalues_and_measurement_agree(name: str, size: int) -> None:
    figures = consensus(Mixing(find_topology(name).or_fallback(size)), size)
    assert figures.measured == pytest.approx(figures.contraction, rel=0.01, abs=1e-9)


def test_steps_follow_the_contraction() -> None:
    assert steps_to(0.1) == pytest.approx(2.0)
    assert steps_to(0.0) == 1.0
    assert steps_to(1.0) == math.inf
    with pytest.raises(SettingsError, match="never reaches a consensus"):
        noise_gain(MatrixMixing(((1.0, 0.0), (0.0, 1.0))), 2)


def test_noise_keeps_learners_as_far_apart_as_the_trace_says() -> None:
    matrix = Mixing(find_topology("ring")).matrix(8)
    by_trace = sum((float(torch.trace(torch.linalg.matrix_power(matrix, 2 * j))) - 1) / 8 for j in range(400))
    assert noise_gain(Mixing(find_topology("ring")), 8) == pytest.approx(by_trace, rel=1e-9)
    assert noise_gain(Mixing(find_topology("complete")), 8) == pytest.approx(1 - 1 / 8)  # as delay by one
    generator, x, seen = torch.Generator().manual_seed(0), torch.zeros(8, 500, dtype=torch.float64), []
    for k in range(200):  # and as seen
        x = matrix @ x - torch.randn(8, 500, generator=generator, dtype=torch.float64)
        seen.append(float((x - x.mean(0)).square().mean()) if k >= 100 else 0.0)
    assert sum(seen) / 100 == pytest.approx(by_trace, rel=0.03)


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
