"""Minibatches of frames, chunks and utterances, addressed by (epoch, index), so that any learner can load any of them.

Each class knows the number of minibatches of an epoch and the frames of each without reading features; the simulator
needs this.  Orders depend on (seed, epoch) only.  Features are read from memory-mapped stores and copied once, into the
minibatch; several kinds may be side by side (see ``network_inputs``).
Legend: B items, T frames, F features, L left and R right context.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundelay.devices import to_device
from roundelay.errors import DataError, SettingsError
from roundelay.speech.features.array_store import ArrayStore
from roundelay.speech.features.network_inputs import Inputs

Ints = npt.NDArray[np.int64]

IGNORED = -100
"""Target of a padding frame; cross-entropy ignores it by default."""
POOL_FRAMES = 1 << 16
"""Frames that are shuffled together: 11 minutes, or 10 MB at 40 features."""


@dataclass(frozen=True)
class Batch:
    """One minibatch."""

    inputs: Tensor
    """(B, (L + 1 + R) F) for frames, (B, L + T + R, F) for chunks, (B, T, F) for utterances; float32."""
    targets: Tensor
    """(B) senones, (B, T) senones with IGNORED beyond the end, or (B, N) labels with 0 beyond the end; int64."""
    frames: int
    """Number of frames without padding."""
    lengths: Tensor | None = None
    """(B) frames of each chunk or utterance without padding."""
    target_lengths: Tensor | None = None
    """(B) labels of each utterance, for CTC."""

    def to_device(self, device: torch.device) -> Batch:
        """Return it on ``device``; lengths stay on the CPU, where all that needs them reads them."""
        return replace(self, inputs=to_device(self.inputs, device), targets=to_device(self.targets, device))


class Minibatches(Protocol):
    """The part of the data that training and simulation use."""

    def __len__(self) -> int:
        """Count the minibatches of an epoch."""

    def frames(self, epoch: int, index: int) -> int:
        """Return the frames of a minibatch without loading it."""

    def load(self, epoch: int, index: int) -> Batch:
        """Read a minibatch."""

    def utterances(self, epoch: int, index: int) -> list[str]:
        """Name the utterance of each item of a minibatch."""


class _Shuffled:
    """Shuffle the items (frames or chunks) of utterances across the corpus, in pools of bounded size.

    An epoch is a random order of the utterances, divided into pools of about ``pool_items`` items.  The items of a pool
    are in random order, and minibatches are consecutive slices.  A last pool of less than a quarter is joined to the
    one before: otherwise the last minibatches of an epoch have few utterances, and batch norm keeps their statistics
    for the evaluation.  So any two items of the corpus can be in one minibatch, but only the order of utterances and a
    few pools are in memory, and reading stays local.
    """

    def __init__(self, items: Ints, size: int, seed: int, pool_items: int, on_pool: Callable[[], None]) -> None:
        if size < 1:
            raise SettingsError(f"minibatches: size must be at least 1, not {size}")
        self.items = items
        self.size = size
        self.total = int(items.sum())
        self._seed = seed
        self._pool_items = max(pool_items, size)
        self._lock = threading.Lock()
        self._on_pool = on_pool
        self._epochs = functools.lru_cache(maxsize=2)(self._order)
        self._pools = functools.lru_cache(maxsize=3)(self._pool)

    def __len__(self) -> int:
        return -(-self.total // self.size)

    def _order(self, epoch: int) -> tuple[Ints, Ints, Ints]:
        """Return the order of utterances, each pool's first utterance, and each pool's first item, with the ends."""
        order = np.random.default_rng((self._seed, epoch)).permutation(len(self.items))
        ends = np.cumsum(self.items[order])
        last = max(1, int(self.total / self._pool_items + 0.75)) - 1
        number = np.minimum((ends - 1) // self._pool_items, last)
        firsts = np.flatnonzero(np.diff(number, prepend=-1))
        offsets = np.concatenate([[0], ends])[np.append(firsts, len(order))]
        return order, np.append(firsts, len(order)), offsets

    def _pool(self, epoch: int, pool: int) -> tuple[Ints, Ints]:
        """Return utterance and position of each item of a pool, shuffled."""
        self._on_pool()
        order, firsts, _ = self._epochs(epoch)
        members = order[firsts[pool] : firsts[pool + 1]]
        counts = self.items[members]
        shuffle = np.random.default_rng((self._seed, epoch, pool)).permutation(int(counts.sum()))
        owner = np.repeat(np.arange(len(members)), counts)[shuffle]
        return members[owner], shuffle - (np.cumsum(counts) - counts)[owner]

    def select(self, epoch: int, index: int) -> tuple[Ints, Ints]:
        """Return utterance and position of each item of a minibatch."""
        if not 0 <= index < len(self):
            raise IndexError(f"minibatch {index} of {len(self)}")
        begin, end = index * self.size, min((index + 1) * self.size, self.total)
        with self._lock:
            _, _, offsets = self._epochs(epoch)
            parts = []
            for pool in range(int(np.searchsorted(offsets, begin, "right")) - 1, len(offsets) - 1):
                if offsets[pool] >= end:
                    break
                part = slice(max(begin - offsets[pool], 0), end - offsets[pool])
                utterances, positions = self._pools(epoch, pool)
                parts.append((utterances[part], positions[part]))
        utterances, positions = (np.concatenate(p) for p in zip(*parts, strict=True))
        return utterances, positions


class _Aligned:
    """Features and targets of the utterances that have both."""

    def __init__(self, features: Inputs, targets: ArrayStore) -> None:
        both = [name for name in features.ids if name in targets and features.lengths[features.index(name)]]
        if not both:
            raise DataError(f"{features.folder}: none of its utterances has targets in {targets.folder}")
        self.names = both
        self._features, self._targets = features, targets
        self._feature_numbers = np.array([features.index(name) for name in both])
        self._target_numbers = np.array([targets.index(name) for name in both])
        self.lengths: Ints = features.lengths[self._feature_numbers]
        differ = np.flatnonzero(self.lengths != targets.lengths[self._target_numbers])
        if len(differ):
            name = both[differ[0]]
            raise DataError(
                f"{features.folder}: {name} has {len(features[name])} frames and {len(targets[name])} targets"
            )

    def release(self) -> None:
        """Release the memory pages of earlier pools."""
        self._features.release()
        self._targets.release()

    def inputs(self, utterances: Ints, times: Ints) -> Tensor:
        """Gather the features at ``times`` (B, K) of ``utterances`` (B); times are clamped to the utterance."""
        return torch.from_numpy(self._features.gather(self._feature_numbers[utterances], times))

    def targets(self, utterances: Ints, times: Ints) -> Tensor:
        """Gather the targets in the same way."""
        return torch.from_numpy(self._targets.gather(self._target_numbers[utterances], times)).long()


class _ShuffledMinibatches:
    """Minibatches of shuffled items, each of one utterance."""

    _data: _Aligned
    _order: _Shuffled

    def __len__(self) -> int:
        return len(self._order)

    def utterances(self, epoch: int, index: int) -> list[str]:
        """Name the utterance of each item of a minibatch."""
        return [self._data.names[i] for i in self._order.select(epoch, index)[0]]


class FrameMinibatches(_ShuffledMinibatches):
    """Single frames with context, shuffled across the corpus: for feed-forward networks."""

    def __init__(
        self, features: Inputs, targets: ArrayStore, size: int = 256, *, left: int = 10, right: int = 10,
        seed: int = 0, pool_frames: int = POOL_FRAMES,
    ) -> None:  # fmt: skip
        self._data = _Aligned(features, targets)
        self._order = _Shuffled(self._data.lengths, size, seed, pool_frames, self._data.release)
        self._context = np.arange(-left, right + 1)
        self.dim = features.dim * len(self._context)

    def frames(self, epoch: int, index: int) -> int:
        """Return the frames of a minibatch; only the last one is smaller."""
        return min(self._order.size, self._order.total - index * self._order.size)

    def load(self, epoch: int, index: int) -> Batch:
        """Read a minibatch."""
        utterances, times = self._order.select(epoch, index)
        inputs = self._data.inputs(utterances, times[:, None] + self._context)
        targets = self._data.targets(utterances, times[:, None])
        return Batch(inputs.float().reshape(len(times), self.dim), targets[:, 0], len(times))


class ChunkMinibatches(_ShuffledMinibatches):
    """Chunks of consecutive frames with context on both sides, shuffled: for recurrent networks.

    An utterance is cut into chunks of ``length`` frames; the last chunk may be shorter.  No state is kept between
    minibatches; decoding uses the same chunks and context.  At an utterance's ends its first or last frame is repeated.
    """

    def __init__(
        self, features: Inputs, targets: ArrayStore, size: int = 32, *, length: int = 21, left: int = 0, right: int = 0,
        seed: int = 0,
    ) -> None:  # fmt: skip
        if length < 1:
            raise SettingsError(f"minibatches: length must be at least 1, not {length}")
        self._data = _Aligned(features, targets)
        self._length = length
        chunks = -(-self._data.lengths // length)
        self._order = _Shuffled(chunks, size, seed, max(1, POOL_FRAMES // length), self._data.release)
        self._context = np.arange(-left, length + right)

    def _valid(self, utterances: Ints, positions: Ints) -> Ints:
        valid: Ints = np.minimum(self._data.lengths[utterances] - positions * self._length, self._length)
        return valid

    def frames(self, epoch: int, index: int) -> int:
        """Return the frames of a minibatch, without context and padding."""
        return int(self._valid(*self._order.select(epoch, index)).sum())

    def load(self, epoch: int, index: int) -> Batch:
        """Read a minibatch."""
        utterances, positions = self._order.select(epoch, index)
        valid = self._valid(utterances, positions)
        begins = (positions * self._length)[:, None]
        inputs = self._data.inputs(utterances, begins + self._context)
        targets = self._data.targets(utterances, begins + np.arange(self._length))
        targets[torch.from_numpy(np.arange(self._length) >= valid[:, None])] = IGNORED
        return Batch(inputs.float(), targets, int(valid.sum()), torch.from_numpy(valid))


class UtteranceMinibatches:
    """Whole utterances of similar length, with their labels: for CTC.

    Utterances are sorted by length, with a little jitter so that minibatches differ between epochs.  They are cut into
    minibatches, and the minibatches are shuffled.
    """

    def __init__(
        self, features: Inputs, labels: Callable[[str], Sequence[int]], size: int = 16, *, seed: int = 0,
        jitter: float = 0.1, utterances: Iterable[str] | None = None,
    ) -> None:  # fmt: skip
        if size < 1:
            raise SettingsError(f"minibatches: size must be at least 1, not {size}")
        self._features, self._labels, self._size = features, labels, size
        self.names = list(features.ids if utterances is None else utterances)
        if not self.names:
            raise DataError(f"{features.folder}: no utterance for minibatches")
        self._lengths: Ints = features.lengths[[features.index(name) for name in self.names]]
        self._seed, self._jitter = seed, jitter
        self._epochs = functools.lru_cache(maxsize=2)(self._order)

    def __len__(self) -> int:
        return -(-len(self.names) // self._size)

    def _order(self, epoch: int) -> tuple[Ints, Ints]:
        """Return the utterances by jittered length, and the order of their minibatches."""
        random = np.random.default_rng((self._seed, epoch))
        jittered = self._lengths * (1 + self._jitter * random.random(len(self._lengths)))
        return np.argsort(jittered, kind="stable"), random.permutation(len(self))

    def _members(self, epoch: int, index: int) -> Ints:
        if not 0 <= index < len(self):
            raise IndexError(f"minibatch {index} of {len(self)}")
        order, batches = self._epochs(epoch)
        first = int(batches[index]) * self._size
        return order[first : first + self._size]

    def utterances(self, epoch: int, index: int) -> list[str]:
        """Name the utterances of a minibatch."""
        return [self.names[i] for i in self._members(epoch, index)]

    def frames(self, epoch: int, index: int) -> int:
        """Return the frames of a minibatch, without padding."""
        return int(self._lengths[self._members(epoch, index)].sum())

    def load(self, epoch: int, index: int) -> Batch:
        """Read a minibatch, padded with zeros to its longest utterance."""
        members = self._members(epoch, index)
        lengths = self._lengths[members]
        inputs = np.zeros((len(members), int(lengths.max()), self._features.dim), np.float32)
        labels = [self._labels(self.names[i]) for i in members]
        targets = torch.zeros(len(members), max(map(len, labels)), dtype=torch.int64)
        for row, (i, sequence) in enumerate(zip(members, labels, strict=True)):
            inputs[row, : lengths[row]] = self._features[self.names[i]]
            targets[row, : len(sequence)] = torch.tensor(list(sequence), dtype=torch.int64)
        counts = torch.tensor([len(sequence) for sequence in labels])
        return Batch(torch.from_numpy(inputs), targets, int(lengths.sum()), torch.from_numpy(lengths), counts)


class Prefetch:
    """Load minibatches ahead in a thread; iterate in a ``with`` block, or to the end."""

    def __init__(self, minibatches: Minibatches, which: Iterable[tuple[int, int]], depth: int = 2) -> None:
        self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(minibatches, which), name="prefetch", daemon=True)
        self._thread.start()

    def _run(self, minibatches: Minibatches, which: Iterable[tuple[int, int]]) -> None:
        try:
            for epoch, index in which:
                if not self._put(minibatches.load(epoch, index)):
                    return
            self._put(None)
        except BaseException as error:  # raised again in the thread that iterates
            self._put(error)

    def _put(self, item: Batch | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[Batch]:
        while not self._stopped.is_set():
            item = self._queue.get()
            if item is None:
                self.close()
            elif isinstance(item, BaseException):
                self.close()
                raise item
            else:
                yield item

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop loading."""
        self._stopped.set()
        self._thread.join()
