"""How the minibatches of a user's loader are divided among learners."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from roundelay.communicator import Communicator
from roundelay.errors import SettingsError

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


class CommonBatches(Protocol[B_co]):
    """Minibatches that any learner may take, by number."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, number: int) -> B_co:
        """Load one."""


class _Batches(Generic[B]):
    """The minibatches of a map-style DataLoader, in the order that the first learner's sampler drew."""

    def __init__(self, loader: DataLoader[Any], batches: Sequence[Sequence[int]]) -> None:
        self.loader, self.batches = loader, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> B:
        dataset = self.loader.dataset
        batch: B = self.loader.collate_fn([dataset[index] for index in self.batches[number]])
        return batch


async def make_common(comm: Communicator, loader: Iterable[B]) -> CommonBatches[B]:
    """Return the loader's minibatches as a list that is the same on all ranks of ``comm``."""
    if isinstance(loader, DataLoader):
        mine = [list(batch) for batch in loader.batch_sampler] if comm.rank == 0 else []  # type: ignore[union-attr]  # not private: has one
        lengths = await _from_first(comm, [len(batch) for batch in mine])
        indices = await _from_first(comm, list(itertools.chain.from_iterable(mine)))
        ends = list(itertools.accumulate(lengths))
        return _Batches(loader, [indices[end - n : end] for end, n in zip(ends, lengths, strict=True)])
    if isinstance(loader, Sequence):
        counts = [int(count) for count in await comm.gather(torch.tensor([len(loader)]))]
        if len(set(counts)) > 1:
            raise SettingsError(
                f"share: learners have {counts} minibatches; give all the same, or use private=True if each has its own"
            )
        return loader
    raise SettingsError(f"share: a {type(loader).__name__} has no numbered minibatches; use private=True")


async def _from_first(comm: Communicator, numbers: Sequence[int]) -> list[int]:
    length = torch.tensor([len(numbers)])
    await comm.broadcast(length, root=0)
    values = torch.tensor(numbers) if comm.rank == 0 else torch.zeros(int(length), dtype=torch.int64)
    if int(length):
        await comm.broadcast(values, root=0)
    return [int(value) for value in values]


def is_private(loader: Iterable[Any]) -> bool:
    """Return whether a loader of this kind gives every learner minibatches of its own."""
    if isinstance(loader, DataLoader):
        samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
        return isinstance(loader.dataset, IterableDataset) or any(isinstance(s, DistributedSampler) for s in samplers)
    return not isinstance(loader, Sequence)


class PrivateBatches(Generic[B]):
    """A learner's own minibatches; one is read ahead, to know when there are no more."""

    def __init__(self, loader: Iterable[B]) -> None:
        self._left: Iterator[B] = iter(loader)
        self._ahead = list(itertools.islice(self._left, 1))

    @property
    def more(self) -> bool:
        """Whether there is another one."""
        return bool(self._ahead)

    def take(self) -> B:
        """Return the next one."""
        (batch,) = self._ahead
        self._ahead = list(itertools.islice(self._left, 1))
        return batch
