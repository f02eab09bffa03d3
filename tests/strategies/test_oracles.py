"""What must be equal to what, by algebra: the strategies against each other, torch and numpy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from quadratic_task import scattered, walk
from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.strategies import (
    ADPSGD,
    ASGD,
    BMUF,
    DPSGD,
    EASGD,
    Averaging,
    DelayByOne,
    Hierarchical,
    RandomADPSGD,
    Synchronous,
    SynchronousEASGD,
    UpdatesASGD,
)
from roundelay.strategies.mixing import Mixing, check_matrix
from roundelay.strategies.topologies import find_topology
from roundelay.strategy import Strategy
from tiny_jobs import sgd, simulated, tiny_job


def consensus(strategy: Strategy, learners: int, **settings: Any) -> Tensor:
    return simulated(tiny_job(strategy, **settings), learners).consensus


def close(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    return torch.allclose(a, b, rtol=0, atol=tolerance)


# -- E1, E2: averaging ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learners", [2, 3, 7])
def test_e1_averaging_after_each_step_is_synchronous_sgd(learners: int) -> None:
    # 60 minibatches do not divide by 7: the last round of each epoch leaves learners idle.
    assert close(consensus(Averaging(period=1), learners), consensus(Synchronous(), learners))


@pytest.mark.parametrize("learners", [2, 5])
@pytest.mark.parametrize("form", ["nesterov", "classical"])
def test_e2_bmuf_without_momentum_is_averaging(learners: int, form: Any) -> None:
    bmuf = BMUF(block=4, momentum=0.0, form=form, optimizer_state="keep")
    mine = consensus(bmuf, learners, optimizer=sgd(0.05, 0.9))
    assert close(mine, consensus(Averaging(period=4), learners, optimizer=sgd(0.05, 0.9)))


# -- E3, E4: the conventions of BMUF ----------------------------------------------------------------------------------

BLOCKS = [4.0, 8.0, 0.0, 16.0, 3.0, 5.0, 7.0, 1.0, 2.0, 9.0, 6.0, 0.0, 4.0, 4.0, 8.0, 2.0]
"""Targets of two learners: eight blocks of one step, half of the way each."""

Rule = Callable[[float, float, float], tuple[float, float]]
"""Of a block's start, the filter's state and the mean of the learners, the next start and state."""


def starts(rule: Rule) -> list[float]:
    """Return where blocks start by a rule of one's own; the first starts at 0."""
    start, delta, all_starts = 0.0, 0.0, []
    for left, right in zip(BLOCKS[::2], BLOCKS[1::2], strict=True):
        start, delta = rule(start, delta, ((start + left) / 2 + (start + right) / 2) / 2)
        all_starts.append(start)
    return all_starts


def ours(**settings: Any) -> list[float]:
    return walk(BMUF(block=1, **settings), BLOCKS, 2).weights[0]


@pytest.mark.parametrize(("eta", "zeta"), [(0.5, 1.0), (0.9, 0.7), (0.0, 1.0)])
def test_e3_nesterov_block_momentum_is_torchs(eta: float, zeta: float) -> None:
    # torch's SGD keeps the look-ahead, which is where blocks start.
    point = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([point], lr=zeta, momentum=eta, nesterov=eta > 0)

    def rule(start: float, delta: float, mean: float) -> tuple[float, float]:
        point.grad = torch.tensor([start - mean], dtype=torch.float64)
        optimizer.step()
        return float(point.detach()), 0.0

    assert ours(momentum=eta, rate=zeta) == pytest.approx(starts(rule), abs=1e-12)


def test_e3_what_cntk_and_fairseq_call_nesterov_differs() -> None:
    # Its look-ahead is not taken back: the next block's base is W + Delta + eta Delta.
    def rule(start: float, delta: float, mean: float) -> tuple[float, float]:
        delta = 0.5 * delta + (mean - start)
        return start + delta + 0.5 * delta, delta

    difference = np.abs(np.subtract(ours(), starts(rule)))
    assert difference[0] == pytest.approx(0.0)
    assert difference.max() > 0.3
    assert ours(form="classical", rate=1.5) == pytest.approx(starts(rule), abs=1e-12)  # the conversion


@pytest.mark.parametrize(("eta", "same"), [(0.5, True), (0.75, False)])
def test_e4_the_sum_form_is_the_mean_form_iff_eta_is_one_minus_one_over_n(eta: float, same: bool) -> None:
    def rule(start: float, delta: float, mean: float) -> tuple[float, float]:  # CNTK and kaldi-aslp
        delta = eta * delta + (1 - eta) * 2 * (mean - start)
        return start + delta, delta

    assert (ours(momentum=eta, form="classical") == pytest.approx(starts(rule), abs=1e-12)) == same
    # The conversion, whatever eta: zeta times (1 - eta) N.
    assert ours(momentum=eta, rate=(1 - eta) * 2, form="classical") == pytest.approx(starts(rule), abs=1e-12)


def test_e4_the_smoothing_form_is_the_mean_form_at_a_smaller_block_rate() -> None:
    def rule(start: float, delta: float, mean: float) -> tuple[float, float]:  # (1 - eta) on the mean
        delta = 0.5 * delta + (1 - 0.5) * (mean - start)
        return start + delta, delta

    assert ours(momentum=0.5, rate=0.5, form="classical") == pytest.approx(starts(rule), abs=1e-12)


# -- E5: special cases of AD-PSGD -------------------------------------------------------------------------------------


class Undelayed(ADPSGD):
    """AD-PSGD that mixes before the next gradient rather than while it is computed."""

    def overlap(self, learner: Learner) -> None:
        pass

    async def step(self, learner: Learner) -> None:
        learner.descend()
        super().overlap(learner)
        learner.take_snapshot()
        for answer in self.replies:
            learner.weights.sub_(await answer)
        await learner.comm.mean(torch.zeros(1))  # who asks nobody waits for those who ask it


@pytest.mark.parametrize("learners", [2, 4, 5])
def test_e5_complete_mixing_without_delay_is_synchronous_sgd(learners: int) -> None:
    mine = consensus(Undelayed(topology="complete"), learners)
    assert close(mine, consensus(Synchronous(), learners))
    assert not close(mine, consensus(ADPSGD(topology="complete"), learners))  # with the delay


@pytest.mark.parametrize("strategy", [DelayByOne(), DelayByOne(topology="ring"), ADPSGD(), RandomADPSGD(), DPSGD()])
def test_e5_one_learner_is_plain_sgd(strategy: Strategy) -> None:
    momentum = sgd(0.05, 0.9)
    assert torch.equal(consensus(strategy, 1, optimizer=momentum), consensus(Synchronous(), 1, optimizer=momentum))


@pytest.mark.parametrize("outer", [ADPSGD(), BMUF(block=10**6), DelayByOne()])
def test_e5_one_node_is_synchronous_sgd(outer: Strategy) -> None:
    nodes = Hierarchical(outer=outer, learners_per_node=7)
    mine, theirs = consensus(nodes, 7, optimizer=sgd(0.05, 0.9)), consensus(Synchronous(), 7, optimizer=sgd(0.05, 0.9))
    assert close(mine, theirs) if isinstance(outer, BMUF) else torch.equal(mine, theirs)


@pytest.mark.parametrize("outer", [ADPSGD(), RandomADPSGD(), EASGD(period=2), ASGD()])
def test_e5_nodes_of_one_learner_are_the_outer_strategy(outer: Strategy) -> None:
    cluster = Cluster(compute=Compute(slowness=[1.0, 1.3, 2.1]))
    nodes = simulated(tiny_job(Hierarchical(outer=outer, learners_per_node=1)), 3, cluster)
    assert close(nodes.consensus, simulated(tiny_job(outer), 3, cluster).consensus)


# -- E6: the mean -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["ring", "random-ring", "complete", "exponential", "hopping-ring"])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 16])
def test_e6_matrices_are_doubly_stochastic(topology: str, size: int) -> None:
    for iteration in range(5):
        check_matrix(Mixing(find_topology(topology)).matrix(size, iteration))


@pytest.mark.parametrize(
    "strategy", [DPSGD(), DPSGD(topology="exponential"), DelayByOne(), ADPSGD(), RandomADPSGD(), ADPSGD(share=0.45)]
)
def test_e6_the_mean_moves_by_the_mean_gradient(strategy: Strategy) -> None:
    moved: list[Tensor] = []
    start = torch.tensor(3.0, dtype=torch.float64)
    path = walk(
        scattered(strategy, lambda learner: start + learner.index),
        [float(k % 7) for k in range(60)],
        4,
        rate=0.1,
        cluster=Cluster(compute=Compute(jitter=0.3, slowness=[1, 1, 1.7, 3])),
        watch=lambda training: moved.append(training.learner.grad[0].clone()) if training.learner.frames else None,
    )
    now = sum(float(training.learner.weights[0]) for training in path.outcome.trainings)
    assert now == pytest.approx(4 * 3 + 6 - 0.1 * float(sum(moved)), abs=1e-9)
    assert len(moved) == 60


# -- E7: elastic averaging --------------------------------------------------------------------------------------------


def test_e7_an_exchange_conserves_the_sum() -> None:
    job = tiny_job(EASGD(period=2, elasticity=0.3), optimizer=sgd(0.0))
    job.strategy = scattered(job.strategy, lambda learner: torch.full_like(learner.weights, float(learner.index)))
    outcome = simulated(job, 3, Cluster(compute=Compute(slowness=[1, 2, 3])))
    centre = Learner(job.task.make_module()).weights
    total = torch.stack([training.learner.weights for training in outcome.trainings]).sum(0)
    assert close(total, centre + 0 + 1 + 2, 1e-5)


@pytest.mark.parametrize("kind", [EASGD, SynchronousEASGD])
def test_e7_without_elasticity_learners_are_alone(kind: type[EASGD]) -> None:
    # minibatches 0, 2, 4 for learner 0 and 1, 3, 5 for learner 1; the centre stays where it was
    path = walk(kind(period=1, elasticity=0.0), [4, 8, 0, 16, 2, 0], 2)
    assert path.weights == {0: [2, 1, 1.5], 1: [4, 10, 5]}
    assert path.consensus == 0


def test_e7_beta_one_puts_the_centre_on_the_mean() -> None:
    job = tiny_job(SynchronousEASGD(period=1, elasticity=1 / 4), optimizer=sgd(0.0), minibatches=4)
    job.strategy = scattered(job.strategy, lambda learner: torch.randn(len(learner.weights)))
    means: list[Tensor] = []

    class Watched(type(job.strategy)):  # type: ignore[misc]  # made by a function
        def pull(self, learner: Learner) -> Any:
            means.append(learner.weights.clone())
            return super().pull(learner)

    job.strategy.__class__ = Watched
    outcome = simulated(job, 4)
    assert close(outcome.consensus, torch.stack(means[:4]).mean(0))


def test_e7_alpha_one_swaps_learner_and_centre() -> None:
    # the learner at 4 and the centre at 0 swap: 0 - (4 - 0)/2, as the gradient is that at 4
    path = walk(EASGD(period=1, elasticity=1.0), [8, 0], 1)
    assert path.weights == {0: [4, -2]}
    assert float(path.outcome.trainings[0].learner.weights[0]) == 4
    assert path.consensus == -2  # one more exchange swaps them again


# -- E11: the parameter server in numpy -------------------------------------------------------------------------------


@pytest.mark.parametrize("learners", [1, 2, 5])
@pytest.mark.parametrize("strategy", [ASGD(), UpdatesASGD(period=1, rate=1.0)])
def test_e11_equal_learners_follow_the_delayed_recursion(learners: int, strategy: Strategy) -> None:
    # w(k+1) = w(k) - gamma g_k(w(k-N+1)), with w(k) = w(0) for k < 0
    targets, rate = [float(k * k % 23) for k in range(60)], 0.05
    w = [1.0]
    for k, target in enumerate(targets):
        w.append(w[k] - rate * (w[max(0, k - learners + 1)] - target))
    path = walk(strategy, targets, learners, rate=rate, task={"start": 1.0})
    assert path.consensus == pytest.approx(w[-1], abs=1e-12)
    for learner in range(learners):
        assert path.weights[learner] == pytest.approx(w[learner + 1 :: learners], abs=1e-12)


def test_one_learner_with_one_server_is_plain_sgd() -> None:
    momentum = sgd(0.05, 0.9)
    assert torch.equal(consensus(ASGD(), 1, optimizer=momentum), consensus(Synchronous(), 1, optimizer=momentum))


# -- E12: AD-PSGD as products of matrices -----------------------------------------------------------------------------

Event = tuple[Any, ...]


class _Heard:
    """An answer that says when it is added."""

    def __init__(self, answer: Any, log: list[Event], event: Event) -> None:
        self.answer, self.log, self.event = answer, log, event

    def __await__(self) -> Any:
        answer = yield from self.answer.__await__()
        self.log.append(self.event)
        return answer


def logged(strategy: ADPSGD, log: list[Event]) -> ADPSGD:
    """Return ``strategy`` such that all that it does is logged in order."""
    kind = type(strategy)

    class Logged(kind):  # type: ignore[misc, valid-type]  # whichever kind it is
        replies: Any

        def overlap(self, learner: Learner) -> None:
            super().overlap(learner)
            log.append(("send", learner.comm.rank))
            pairs = zip(self.replies, self.asked, strict=True)
            self.replies = [_Heard(answer, log, ("hear", learner.comm.rank, peer)) for answer, peer in pairs]

        def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
            log.append(("serve", learner.comm.rank, source, source in self.expected))
            answer: Tensor = super().serve(learner, theirs, source)
            return answer

        async def step(self, learner: Learner) -> None:
            await super().step(learner)
            log.append(("descend", learner.comm.rank, learner.grad.double()))

    return Logged(topology=strategy.topology, seed=strategy.seed, share=strategy.share)


def replay(log: list[Event], start: Tensor, size: int, share: float, rate: float) -> Tensor:
    """Multiply the state, all weights, what was sent and what was answered, by a matrix for each event."""
    state = torch.zeros(2 * size + size * size, len(start), dtype=torch.float64)
    state[:size] = start.double()
    for what, rank, *more in log:
        matrix = torch.eye(len(state), dtype=torch.float64)
        if what == "send":
            matrix[size + rank] = 0.0
            matrix[size + rank, rank] = 1.0
        elif what == "serve":
            source, first = more
            answer = 2 * size + source * size + rank
            matrix[answer] = 0.0
            matrix[answer, size + source] += share
            matrix[answer, size + rank if first else rank] -= share
            matrix[rank] += matrix[answer]
        elif what == "hear":
            matrix[rank, 2 * size + rank * size + more[0]] = -1.0
        state = matrix @ state
        if what == "descend":
            state[rank] -= rate * more[0]
    return state[:size]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", [ADPSGD(), RandomADPSGD(seed=3), ADPSGD(share=0.2)])
def test_e12_events_replayed_as_matrices_give_the_weights(strategy: ADPSGD, seed: int) -> None:
    rng, size, log = random.Random(seed), 5, list[Event]()
    compute = Compute(jitter=0.4, slowness=[rng.choice([0.3, 1, 3]) for _ in range(size)])
    cluster = Cluster(intra_node=NetworkLink(rng.choice([1e-5, 0.05, 0.3])), compute=compute)
    job = tiny_job(logged(strategy, log), minibatches=200)
    outcome = simulated(job, size, cluster)
    share = 1 / 3 if strategy.share is None else strategy.share
    replayed = replay(log, Learner(job.task.make_module()).weights, size, share, rate=0.05)
    for rank, training in enumerate(outcome.trainings):
        assert close(training.learner.weights.double(), replayed[rank], 1e-5)
    assert sum(event[0] == "descend" for event in log) == 200
