"""How a user's loader is divided among learners."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from roundelay.errors import SettingsError
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, Simulation
from roundelay.user_loop.loaders import common_batches, digest, is_own

DATA = TensorDataset(torch.arange(10.0))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(5.0)


def common(loaders: list[Any]) -> list[Any]:
    """Make the common list on several simulated ranks, each with its own loader."""
    from torch import nn

    from roundelay.learner import Learner

    sim, made = Simulation(Cluster(), learners=len(loaders)), dict[int, Any]()

    async def rank(number: int) -> None:
        learner = Learner(nn.Linear(1, 1))
        await SimulatedRuntime(sim, number).rendezvous(learner, {}, lambda *_: {})
        made[number] = await common_batches(learner.comm, loaders[number])

    for number in range(len(loaders)):
        sim.start(number, rank(number))
    sim.run()
    return [made[number] for number in sorted(made)]


def test_all_ranks_use_the_order_of_the_first_sampler() -> None:
    lists = common([DataLoader(DATA, batch_size=3, shuffle=True) for _ in range(3)])
    batches = [list(each) for each in lists]
    assert batches[0] == batches[1] == batches[2]
    assert [len(batch) for batch in batches[0]] == [3, 3, 3, 1]
    assert sorted(itertools.chain.from_iterable(batches[0])) == list(range(10))


def test_sequences_must_have_equal_lengths() -> None:
    assert [len(each) for each in common([[1, 2], [3, 4]])] == [2, 2]
    with pytest.raises(SettingsError, match=r"learners have \[2, 1\] minibatches; give all the same, or own=True"):
        common([[1, 2], [3]])


def test_an_empty_loader_gives_no_minibatches() -> None:
    assert [len(each) for each in common([DataLoader(TensorDataset(torch.zeros(0)))] * 2)] == [0, 0]


@pytest.mark.parametrize(
    ("loader", "own"),
    [
        ([1, 2], False),
        (iter([1, 2]), True),
        (DataLoader(DATA), False),
        (DataLoader(Stream()), True),
        (DataLoader(DATA, batch_size=None), True),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)), True),
    ],
)
def test_a_loader_is_divided_or_each_learners_own_by_its_kind(loader: Any, own: bool) -> None:
    assert is_own(loader) == own


@pytest.mark.parametrize("padded", [False, True])
def test_samples_that_a_sampler_has_divided_are_not_divided_again(padded: bool) -> None:
    data = TensorDataset(torch.arange(41.0 if padded else 40.0))
    mine = [[k % len(data) for k in range(rank, 42 if padded else 40, 2)] for rank in range(2)]
    assert common([DataLoader(data, batch_size=2, sampler=order) for order in mine]) == [None, None]


def test_samplers_that_draw_from_all_samples_are_divided() -> None:
    weighted = [torch.utils.data.WeightedRandomSampler([1.0] * 40, 40) for _ in range(2)]
    data = TensorDataset(torch.arange(40.0))
    one, two = common([DataLoader(data, batch_size=2, sampler=sampler) for sampler in weighted])
    assert len(one) == 20
    assert list(one) == list(two)


def test_equal_minibatches_are_seen_by_their_digest() -> None:
    batch = {"x": torch.arange(6.0).view(2, 3), "text": ["one", "two"], "length": 3}
    assert digest(batch) == digest({"x": torch.arange(6.0).view(2, 3), "text": ["one", "two"], "length": 3})
    assert (
        len({digest(batch | change) for change in ({}, {"length": 4}, {"text": ["one"]}, {"x": torch.ones(2, 3)})}) == 4
    )
