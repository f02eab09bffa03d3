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
from roundelay.user_loop.loaders import PrivateBatches, is_private, make_common

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
        made[number] = await make_common(learner.comm, loaders[number])

    for number in range(len(loaders)):
        sim.start(number, rank(number))
    sim.run()
    return [made[number] for number in sorted(made)]


def test_all_ranks_use_the_order_of_the_first_sampler() -> None:
    lists = common([DataLoader(DATA, batch_size=3, shuffle=True) for _ in range(3)])
    batches = [[batch[0].tolist() for batch in (each[k] for k in range(len(each)))] for each in lists]
    assert batches[0] == batches[1] == batches[2]
    assert [len(batch) for batch in batches[0]] == [3, 3, 3, 1]
    assert sorted(itertools.chain.from_iterable(batches[0])) == list(range(10))


def test_sequences_must_have_equal_lengths() -> None:
    assert [len(each) for each in common([[1, 2], [3, 4]])] == [2, 2]
    with pytest.raises(SettingsError, match=r"learners have \[2, 1\] minibatches; give all the same, or use private"):
        common([[1, 2], [3]])
    with pytest.raises(SettingsError, match="a generator has no numbered minibatches; use private=True"):
        common([(k for k in range(3))])


def test_an_empty_loader_gives_no_minibatches() -> None:
    assert [len(each) for each in common([DataLoader(TensorDataset(torch.zeros(0)))] * 2)] == [0, 0]


@pytest.mark.parametrize(
    ("loader", "private"),
    [
        ([1, 2], False),
        (iter([1, 2]), True),
        (DataLoader(DATA), False),
        (DataLoader(Stream()), True),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)), True),
    ],
)
def test_a_loader_is_private_or_common_by_its_kind(loader: Any, private: bool) -> None:
    assert is_private(loader) == private


def test_private_minibatches_are_read_one_ahead() -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(3):
            read.append(number)
            yield number

    own, taken = PrivateBatches(numbers()), list[int]()
    assert read == [0]
    while own.more:
        taken.append(own.take())
    assert taken == read == [0, 1, 2]
