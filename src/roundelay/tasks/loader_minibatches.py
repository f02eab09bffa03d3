"""The minibatches of a user's loader by their number: of a DataLoader, of any iterable, or of a list.

Learners of a simulated cluster claim minibatches by number, and a minibatch that is given back is trained again.  So a
number always means the same minibatch, whoever loads it and however often.  The loader's epochs follow each other: if
one has fewer minibatches than the first one, the next begins earlier.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from roundelay.errors import DataError, SettingsError

ORDER, LOADING, STREAM = 1, 2, 3  # what random numbers are drawn for: each has a seed of its own
KEPT_EPOCHS = 3  # whose order is kept; learners are at most in two at a time
MOST_COUNTED = 100_000  # minibatches of an iterable without a length: more is taken for endless


class NumberedMinibatches(Protocol):
    """Minibatches by their number, from 0, over all epochs."""

    per_epoch: int
    """How many there are in the first epoch."""

    def load(self, number: int) -> Any:
        """Return a minibatch."""

    def samples(self, number: int) -> int | None:
        """Return how many samples it has, if that is known without loading it."""


class RandomStates:
    """The global generators of torch, Python and numpy, seeded by some numbers within ``with``, and unchanged after it.

    The next ``with`` continues where the last one ended.
    """

    def __init__(self, *numbers: int) -> None:
        self._seed = hash(numbers) & (2**63 - 1)  # of integers only: the same in every process
        self._own: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        self._outer = _states()
        if self._own is None:
            torch.default_generator.manual_seed(self._seed)
            random.seed(self._seed)
            np.random.seed(self._seed & 0xFFFFFFFF)
        else:
            _restore(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = _states()
        _restore(self._outer)


def _states() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _restore(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def keep(loader: Any, what: str, most: int | None = None) -> Any:
    """Return a loader that can be read again: of an iterator, such as a generator, the list of its minibatches."""
    if not isinstance(loader, Iterator):
        return loader
    kept = list(itertools.islice(loader, most if most is not None else MOST_COUNTED + 1))
    if most is None:
        _check_end(len(kept), what)
    return kept


def _check_end(count: int, what: str) -> None:
    if count > MOST_COUNTED:
        raise SettingsError(f"{what}: has no length and no end; give minibatches=, the number of an epoch")


def number_minibatches(loader: Any, what: str, *, seed: int, most: int | None = None) -> NumberedMinibatches:
    """Return the minibatches of ``loader``; of one without a length an epoch has ``most``, or all that there are.

    ``what`` names the loader in messages.
    """
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise SettingsError(f"{what}: a {type(loader).__name__} has samples; give DataLoader(dataset, batch_size=...)")
    if isinstance(loader, str | bytes | Mapping | Tensor) or not hasattr(loader, "__iter__"):
        raise SettingsError(f"{what}: not minibatches but a {type(loader).__name__}; give a DataLoader or a list")
    made: NumberedMinibatches
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        made = MapMinibatches(loader, what, seed)
    elif isinstance(loader, Sequence):
        made = ListedMinibatches(loader)
    else:
        made = StreamedMinibatches(loader, what, seed, most)
    if not made.per_epoch:
        raise DataError(f"{what}: has no minibatches; with drop_last=True a DataLoader drops one that is not full")
    return made


class ListedMinibatches:
    """A list of minibatches, in its order in every epoch."""

    def __init__(self, minibatches: Sequence[Any]) -> None:
        self._minibatches, self.per_epoch = minibatches, len(minibatches)

    def load(self, number: int) -> Any:
        """Return a minibatch."""
        return self._minibatches[number % self.per_epoch]

    def samples(self, number: int) -> int | None:
        """Return None: a minibatch may be anything."""
        return None


class MapMinibatches:
    """The minibatches of a DataLoader over a dataset with numbered samples; its sampler draws each epoch's order."""

    def __init__(self, loader: DataLoader[Any], what: str, seed: int) -> None:
        self._loader, self._what, self._seed = loader, what, seed
        self._collates = loader.batch_sampler is not None  # else each key is a whole minibatch (batch_size=None)
        inner = getattr(loader.batch_sampler, "sampler", None)
        self._samplers = [each for each in (loader.batch_sampler, loader.sampler, inner) if each is not None]
        for sampler in self._samplers:
            if getattr(sampler, "num_replicas", 1) > 1:
                raise SettingsError(
                    f"{what}: a {type(sampler).__name__} leaves out what is other processes'; give a loader of all "
                    "minibatches, which the simulator divides among its learners"
                )
        found = [getattr(each, "generator", None) for each in (loader, *self._samplers)]
        self._generators = list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
        self._states = [[generator.get_state() for generator in self._generators]]  # before each epoch
        self._ends: list[int] = []  # of the epochs that were drawn, as numbers
        self._drawn: dict[int, list[Any]] = {}
        self.per_epoch = len(self._epoch(0))

    def load(self, number: int) -> Any:
        """Load a minibatch, as a DataLoader without worker processes does."""
        key, dataset = self._key(number), self._loader.dataset
        with RandomStates(self._seed, LOADING, number):
            if not self._collates:
                return self._loader.collate_fn(dataset[key])
            several = getattr(dataset, "__getitems__", None)
            return self._loader.collate_fn(several(key) if several else [dataset[index] for index in key])

    def samples(self, number: int) -> int | None:
        """Return how many samples the sampler has drawn, None if it draws whole minibatches."""
        return len(self._key(number)) if self._collates else None

    def _key(self, number: int) -> Any:
        while not self._ends or number >= self._ends[-1]:
            if not self._epoch(len(self._ends)):
                raise DataError(f"{self._what}: epoch {len(self._ends)} has no minibatches; its sampler ends for good")
        epoch = bisect.bisect_right(self._ends, number)
        return self._epoch(epoch)[number - (self._ends[epoch - 1] if epoch else 0)]

    def _epoch(self, epoch: int) -> list[Any]:
        """Return what the sampler draws in an epoch; those before it were drawn already."""
        if epoch not in self._drawn:
            self._drawn[epoch] = self._draw(epoch)
            for old in sorted(self._drawn)[:-KEPT_EPOCHS]:
                del self._drawn[old]
        return self._drawn[epoch]

    def _draw(self, epoch: int) -> list[Any]:
        """Let the sampler draw; a generator of the user's own goes on from epoch to epoch, and is put back."""
        for one in (*self._samplers, self._loader.dataset):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)
        before = [generator.get_state() for generator in self._generators]
        for generator, state in zip(self._generators, self._states[epoch], strict=True):
            generator.set_state(state)
        with RandomStates(self._seed, ORDER, epoch):
            if self._loader.batch_sampler is not None:
                drawn: list[Any] = [list(batch) for batch in self._loader.batch_sampler]
            else:
                drawn = list(self._loader.sampler)
        if epoch == len(self._ends):
            self._ends.append((self._ends[-1] if self._ends else 0) + len(drawn))
            self._states.append([generator.get_state() for generator in self._generators])
        for generator, state in zip(self._generators, before, strict=True):
            generator.set_state(state)
        return drawn


class StreamedMinibatches:
    """The minibatches of an iterable that can be read again, in the order in which it gives them."""

    def __init__(self, loader: Iterable[Any], what: str, seed: int, most: int | None) -> None:
        self._loader, self._what, self._seed = loader, what, seed
        self._waiting: dict[int, Any] = {}  # read, and not loaded yet
        self._top = 0  # all before it were read once
        self._rewind()
        self.per_epoch = self._length(most)

    def _length(self, most: int | None) -> int:
        try:
            return len(self._loader)  # type: ignore[arg-type]  # if it has one
        except TypeError:
            pass
        if most is not None:
            return most
        with RandomStates(self._seed, STREAM, 0):
            count = sum(1 for _ in itertools.islice(self._loader, MOST_COUNTED + 1))
        _check_end(count, self._what)
        return count

    def load(self, number: int) -> Any:
        """Return a minibatch; one that was loaded before is read again from the beginning."""
        self._read(number)
        return self._waiting.pop(number)

    def samples(self, number: int) -> int | None:
        """Return None: only the minibatch itself shows it."""
        return None

    def _rewind(self) -> None:
        self._next, self._epoch, self._left = 0, 0, self._iterate(0)
        self._fresh = True  # whether the epoch has given no minibatch yet

    def _iterate(self, epoch: int) -> Iterator[Any]:
        owners: list[Any] = [self._loader, getattr(self._loader, "dataset", None)]
        for each in owners:
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
        states = RandomStates(self._seed, STREAM, epoch)
        with states:
            left = iter(self._loader)
        while True:
            with states:
                try:
                    batch = next(left)
                except StopIteration:
                    return
            yield batch

    def _read(self, number: int) -> None:
        """Read on, until this minibatch is in memory."""
        if number in self._waiting:
            return
        if number < self._next:
            self._rewind()
        while self._next <= number:
            batch = next(self._left, self)
            if batch is not self:
                if self._next == number or self._next >= self._top:
                    self._waiting[self._next] = batch
                self._next, self._fresh = self._next + 1, False
                self._top = max(self._top, self._next)
                continue
            if self._fresh and self._epoch:
                raise DataError(f"{self._what}: epoch {self._epoch} has no minibatches; it can be read only once")
            self._epoch, self._fresh = self._epoch + 1, True
            self._left = self._iterate(self._epoch)
