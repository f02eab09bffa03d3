"""A number always means the same minibatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from own_model import LOADER
from roundelay.errors import RoundelayError
from roundelay.tasks.loader_minibatches import keep, number_minibatches


class Stream:
    """Ten minibatches without a length, in another order each time."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.randperm(10).view(10, 1)


@pytest.mark.parametrize("loader", [LOADER, Stream(), [1, 2, 3]])
def test_a_number_is_the_same_minibatch_in_any_order(loader: Any) -> None:
    one, other = (number_minibatches(loader, "loader", seed=3) for _ in range(2))
    forwards = [str(one.load(number)) for number in range(35)]
    assert [str(other.load(number)) for number in reversed(range(35))] == forwards[::-1]


def test_an_epoch_has_every_minibatch_once() -> None:
    made = number_minibatches(Stream(), "loader", seed=0)
    assert made.per_epoch == 10
    assert sorted(int(made.load(number)) for number in range(10, 20)) == list(range(10))


def test_a_generator_is_kept() -> None:
    assert keep((k for k in range(3)), "loader") == [0, 1, 2]


def test_batch_size_none_takes_whole_minibatches() -> None:
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=None, sampler=[[0, 1], [2, 3]])
    made = number_minibatches(loader, "loader", seed=0)
    assert [made.load(k)[0].tolist() for k in range(2)] == [[0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize("bad", [[], TensorDataset(torch.zeros(2)), "text", 3, torch.zeros(3)])
def test_bad_loaders_are_refused(bad: Any) -> None:
    with pytest.raises(RoundelayError, match="loader: "):
        number_minibatches(bad, "loader", seed=0)
