"""How the minibatches of a user's loader are divided among learners; the loader's own workers load them."""

from __future__ import annotations

import copy
import hashlib
import itertools
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from roundelay.communicator import Communicator, gather_json
from roundelay.devices import to_device
from roundelay.errors import LearnerLost, SettingsError
from roundelay.training.budget import Claim
from roundelay.user_loop.course import LoopState, Way

B = TypeVar("B")
T = TypeVar("T")
logger = logging.getLogger(__name__)

Purpose = Literal["begins a loop", "takes a step without share()", "ends an epoch", "closes its learner"]
"""What a learner does next between two loops."""

MAX_DIGEST_BYTES = 1 << 16  # of a tensor, when the first minibatches of learners are compared


class Sharer(Protocol):
    """The learner whose minibatches a loader gives."""

    batch_device: torch.device | None
    """Where minibatches are moved; ``None``: they stay where they are."""

    @property
    def rank(self) -> int:
        """Its number among the learners."""

    @property
    def num_learners(self) -> int:
        """How many learners train."""

    @property
    def in_lockstep(self) -> bool:
        """Whether all take their steps together."""

    @property
    def at_rest(self) -> bool:
        """Whether it is between two loops."""

    @property
    def generation(self) -> int:
        """The number of the current membership."""

    @property
    def learners_comm(self) -> Communicator:
        """The communicator of the learners alone."""

    def inside(self) -> AbstractContextManager[None]:
        """Hold the strategy lock."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine among learners that are at rest."""

    def come_to_rest(self) -> None:
        """Come to rest, if a loop was left early."""

    def meet(self, purpose: Purpose) -> set[Purpose]:
        """Wait for all learners between two loops; raise if they do not do the same."""

    def approach(self) -> Way:
        """Return how to begin the next loop."""

    def enter_loop(self) -> LoopState:
        """Enter the loop that the others are in."""

    def regroup(self, lost: LearnerLost) -> None:
        """Continue with the survivors, between two loops."""

    def begin(
        self,
        minibatches: int,
        *,
        shared: bool = True,
        own: bool = False,
        order: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Begin a loop; return the number of its first minibatch."""

    def claim(self) -> tuple[Claim | None, int]:
        """Claim a common minibatch; return it and the membership in which that counts."""

    def even_claims(self) -> Iterator[Claim]:
        """Return our claims if all learners take equally many; after a loss there are others."""

    def reach(self, position: int) -> None:
        """Note how far our own minibatches go."""

    def hand_out(self, generation: int, claim: Claim) -> bool:
        """Begin a minibatch; return whether it still counts."""

    def end_loop(self, handed: int) -> None:
        """Come to our end of a loop."""


class SharedLoader(Generic[B]):
    """This learner's minibatches of a loader; iterate over it once an epoch, as over the loader itself.

    It has the loader's attributes, so that ``shared.sampler.set_epoch(epoch)`` works, and a length for schedulers.
    """

    def __init__(self, learner: Sharer, loader: Iterable[B], *, own: bool | None, equal: bool) -> None:
        self._learner, self._loader, self._asked, self._equal = learner, loader, own, equal
        self._own = own
        self._claimed: deque[tuple[int, Claim]] = deque()  # handed to the loader, with the generation of the claim
        self._ours: DataLoader[Any] | None = None
        self._batches: Sequence[Any] = ()
        self._first = 0
        self._division = ""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader."""
        return getattr(self._loader, name)

    def __len__(self) -> int:
        """Return how many minibatches this learner takes; with a strategy without a common pace, on average."""
        learner, own = self._learner, self._own
        total: int = len(self._loader)  # type: ignore[arg-type]  # a loader without a length has none here either
        if own is None:
            own = is_own(self._loader)
        if own:
            return total
        if self._equal:
            return total // learner.num_learners
        if learner.in_lockstep:
            return len(range(learner.rank, total, learner.num_learners))
        return -(-total // learner.num_learners)

    # -- an epoch -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[B]:
        """Hand out this learner's minibatches, and end on all learners together."""
        learner = self._learner
        source = self._begin()
        if source is None:
            return
        handed = 0
        while not learner.at_rest:
            self._claimed.clear()
            for batch in source():
                generation, claim = self._claimed.popleft()
                if learner.hand_out(generation, claim):
                    handed += 1
                    yield batch if learner.batch_device is None else to_device(batch, learner.batch_device)
            learner.end_loop(handed)

    def _begin(self) -> Any:
        """Agree with all learners on what there is to train; return what gives our minibatches.

        ``None``: the others are past this loop.
        """
        learner, loader = self._learner, self._loader
        taken: Iterator[B] = iter(())
        note = self._division
        with learner.inside():
            while True:
                learner.come_to_rest()  # a loop may have been left early
                way = learner.approach()
                if way == "skip":
                    return None
                if way == "enter":
                    order = self._enter(learner.enter_loop())
                    break
                try:
                    learner.meet("begins a loop")
                    self._own, order, taken, note = learner.run(self._divide(learner.learners_comm))
                    sampled = order if isinstance(loader, DataLoader) and not self._own else None
                    self._first = learner.begin(0 if self._own else len(order), own=self._own, order=sampled)
                    break
                except LearnerLost as lost:
                    learner.regroup(lost)
        self._say(note)
        if self._own:
            return lambda: self._number(taken)
        self._batches = order
        if not isinstance(loader, DataLoader):
            return lambda: (self._batches[number - self._first] for number in self._claims())
        if self._ours is None:
            self._ours = copy.copy(loader)  # with its workers, prefetching and pinning, and what a subclass does
            vars(self._ours)["batch_sampler"] = _ClaimSampler(self)
            if loader.num_workers and not learner.in_lockstep:
                vars(self._ours)["prefetch_factor"] = 1  # what is claimed ahead, another learner cannot take
        return lambda: self._ours

    def _enter(self, loop: LoopState) -> Sequence[Any]:
        """Enter a loop that the others are in; return the minibatches."""
        self._own, self._first = loop.own, loop.first
        if loop.order is not None:
            return loop.order
        assert isinstance(self._loader, Sequence)
        return self._loader

    def _say(self, note: str) -> None:
        if note != self._division and self._learner.rank == 0 and self._learner.num_learners > 1:
            logger.info("share: %s", note)
        self._division = note

    async def _divide(self, comm: Communicator) -> tuple[bool, Sequence[Any], Iterator[B], str]:
        """Return whether each learner has its own minibatches, the common ones, our own, and what to say of it."""
        loader, size, rank = self._loader, comm.size, comm.rank
        nothing: Iterator[B] = iter(())
        if self._asked is not True and not is_own(loader):
            order = await common_batches(comm, loader, trusted=self._asked is False)
            if order is not None:
                return False, order, nothing, f"{len(order)} minibatches are divided among {size} learners"
            return True, (), iter(loader), "the loader's sampler gives each learner its own minibatches"
        if self._asked is False and is_own(loader):
            raise SettingsError(f"share: a {type(loader).__name__} has no numbered minibatches; leave own=False out")
        mine = iter(loader)
        if self._asked is None and size > 1 and not _has_sharding_sampler(loader):
            ahead = list(itertools.islice(mine, 1))
            mine = itertools.chain(ahead, mine)
            digests = await gather_json(comm, digest(ahead[0]) if ahead else "")
            if len(set(digests)) == 1 and ahead:
                return True, (), itertools.islice(mine, rank, None, size), f"each learner trains every {size}th of all"
        return True, (), mine, "each learner trains its own minibatches"

    # -- claims -------------------------------------------------------------------------------------------------

    def _claims(self) -> Iterator[int]:
        """Claim one minibatch after another, as they are asked for."""
        learner = self._learner
        even, generation = None, -1
        while True:
            if self._equal:
                if even is None or generation != learner.generation:  # a learner was lost
                    even, generation = learner.even_claims(), learner.generation
                claim = next(even, None)
            else:
                claim, generation = learner.claim()
            if claim is None or claim.number is None:
                return
            self._claimed.append((generation, claim))
            yield claim.number

    def _number(self, taken: Iterator[B]) -> Iterator[B]:
        """Give numbers to our own minibatches."""
        learner = self._learner
        for number, batch in enumerate(taken):
            if learner.at_rest:
                return
            position = self._first + number * learner.num_learners
            self._claimed.append((learner.generation, Claim(position + learner.rank, position)))
            learner.reach(position + learner.num_learners)
            yield batch


_STANDARD = (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler)


class _ClaimSampler:
    """A batch sampler that claims minibatches when the loader asks for their indices, ahead of time with workers."""

    def __init__(self, shared: SharedLoader[Any]) -> None:
        self._shared = shared

    def __len__(self) -> int:
        return len(self._shared)

    def __iter__(self) -> Iterator[Sequence[int]]:
        shared = self._shared
        for number in shared._claims():
            yield shared._batches[number - shared._first]


async def common_batches(comm: Communicator, loader: Iterable[Any], *, trusted: bool = False) -> Sequence[Any] | None:
    """Return the minibatches that all learners divide, in one order; ``None``: samplers have divided them.

    ``trusted``: the user says that no sampler has.
    """
    if not isinstance(loader, DataLoader):
        assert isinstance(loader, Sequence)
        counts = [int(count) for count in await comm.gather(torch.tensor([len(loader)]))]
        if len(set(counts)) > 1:
            raise SettingsError(
                f"share: learners have {counts} minibatches; give all the same, or own=True if each has its own"
            )
        return loader
    sampler: Any = loader.batch_sampler
    standard = type(sampler) is torch.utils.data.BatchSampler and type(loader.sampler) in _STANDARD
    if comm.size > 1 and not standard and not trusted:
        mine = [list(batch) for batch in sampler]
        marks = torch.zeros(len(loader.dataset), dtype=torch.uint8)  # type: ignore[arg-type]  # map-style: has a length
        marks[list(itertools.chain.from_iterable(mine))] = 1
        counts_by_sample = torch.stack([each.int() for each in await comm.gather(marks)]).sum(0)
        covered, twice = int((counts_by_sample > 0).sum()), int((counts_by_sample > 1).sum())
        padding = comm.size * max((len(batch) for batch in mine), default=0)  # samplers repeat a few samples
        if twice <= max(padding, covered // 10) and covered > 2 * padding:
            return None
    else:
        mine = [list(batch) for batch in sampler] if comm.rank == 0 else []
    lengths = await _from_first(comm, [len(batch) for batch in mine])
    indices = await _from_first(comm, list(itertools.chain.from_iterable(mine)))
    ends = list(itertools.accumulate(lengths))
    return [indices[end - n : end] for end, n in zip(ends, lengths, strict=True)]


async def _from_first(comm: Communicator, numbers: Sequence[int]) -> list[int]:
    length = torch.tensor([len(numbers)])
    await comm.broadcast(length, root=0)
    values = torch.tensor(numbers) if comm.rank == 0 else torch.zeros(int(length), dtype=torch.int64)
    if int(length):
        await comm.broadcast(values, root=0)
    result: list[int] = values.tolist()
    return result


def is_own(loader: Iterable[Any]) -> bool:
    """Return whether a loader of this kind cannot be divided by number: each learner takes what its own gives."""
    if isinstance(loader, DataLoader):
        iterable = isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None
        return iterable or _has_sharding_sampler(loader)
    return not isinstance(loader, Sequence)


def _has_sharding_sampler(loader: Iterable[Any]) -> bool:
    """Return whether torch's own sampler has divided the samples already."""
    samplers = (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    return any(isinstance(each, DistributedSampler) for each in samplers)


def digest(batch: object) -> str:
    """Return a digest of the tensors and texts in a minibatch, to see whether two learners were given the same."""
    sums = hashlib.blake2b(digest_size=16)

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            flat = value.detach().reshape(-1)[:MAX_DIGEST_BYTES].cpu().contiguous()
            sums.update(str((value.dtype, tuple(value.shape))).encode())
            if not value.is_quantized and flat.dtype != torch.bfloat16:
                sums.update(flat.numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                add(key)
                add(item)
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        elif isinstance(value, str | int | float | bytes):
            sums.update(repr(value)[:MAX_DIGEST_BYTES].encode())
        else:
            sums.update(type(value).__name__.encode())

    add(batch)
    return sums.hexdigest()
