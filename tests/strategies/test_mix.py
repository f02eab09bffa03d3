"""The one operation by which strategies mix: exchanges start at once, and the awaited sum is a new tensor."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Generator
from typing import Any, cast

import torch
from torch import Tensor, nn

from roundelay.communicator import Communicator
from roundelay.learner import Learner
from roundelay.strategies.mixing import MatrixMixing, Mixing
from roundelay.strategies.topologies import Ring, find_topology


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


def test_exchanges_start_at_once_and_the_sum_is_new() -> None:
    learner, peers = learner_among_peers()
    mixed = Mixing(Ring()).mix(learner)
    assert peers.sent == [(0, 10.0), (2, 10.0)]
    assert awaited(mixed) == torch.tensor(10.0) * (1 - 2 / 3) + torch.tensor(1.0) / 3 + torch.tensor(100.0) / 3
    assert float(learner.weights[0]) == 10.0


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
