"""What one learner does around each gradient: the base class of every strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal, overload

from torch import Tensor

from roundelay.communicator import DeferredReply
from roundelay.config import check_bounds
from roundelay.learner import Learner
from roundelay.plugins import Registry

OptimizerState = Literal["keep", "average", "reset"]
"""What happens to a learner's optimizer state when weights are averaged."""


class Strategy:
    """A dataclass whose fields are hyperparameters and whose methods are the paper's algorithm box.

    It contains no thread, lock, tag, process group, clock, fault handling, or question which runtime it is on.
    Between two awaits nothing else touches the learner.  `setup` may run many times; it creates all state from
    ``learner.weights``, ``comm.rank`` and ``comm.size``, for any number of learners.  A `step` that raises is undone:
    it may change ``learner`` and ``self`` any time, but ``replicated`` state only after its last await.  An operation
    that `overlap` or `ready` starts is awaited in `step`.

    Ranks below ``servers`` only serve; the others train.

    What happens only after some number of steps has that number in a field called ``period`` or, where the paper has
    blocks, ``block``; so that `period_setting` finds it.
    """

    registry: ClassVar[Registry[Strategy]]
    """The strategies by the names that settings give them; `roundelay.strategies` sets it."""
    servers: int = 0
    """Number of ranks that only serve; they are extra, and come before the learners."""
    state: ClassVar[tuple[str, ...]] = ()
    """Attributes that a checkpoint saves: tensors, numbers, or nested strategies."""
    replicated: ClassVar[tuple[str, ...]] = ()
    """The part of ``state`` that is equal on all learners: it survives a loss and is sent to newcomers."""
    conserves_mean: ClassVar[bool] = False
    """Whether mixing keeps the sum of all weights: only `Learner.descend` changes their mean."""
    atomic_step: ClassVar[bool] = False
    """Whether only `step` changes the weights, and only after its last await: no snapshot is needed to undo it."""
    partial_step_ok: ClassVar[bool] = False
    """Whether the weights of an interrupted step may be kept: only its own gradient is missing from them."""
    steps_on_server: ClassVar[bool] = False
    """Whether servers take the optimizer's steps: they need what a user loop does to the rate and to the weights."""
    averages_gradients: ClassVar[bool] = False
    """Whether `step` is `average_gradients`, then `Learner.descend`: a user loop averages after each backward pass."""
    fallback_note: str = ""
    """The fallback in use, if the settings do not fit the current number of learners; set by `setup`."""
    bucket_bytes: int = 0
    """Call `ready` during the backward pass in parts of about this size; 0: never."""

    @property
    def join_interval(self) -> int:
        """Newcomers join best every so many steps: there all learners have equal weights."""
        return 1

    def owned_parts(self, learner: Learner) -> Sequence[slice] | None:
        """Return the slices that only this rank keeps current; a regroup copies them and averages the rest.

        ``None``: the weights of this rank are no model, and are left out of the mean.
        """
        return ()

    def check(self, size: int) -> None:
        """Raise `SettingsError` if the settings do not fit ``size`` learners; called before training starts."""
        check_bounds(self, "strategy.")

    def lockstep_groups(self, size: int) -> Sequence[Sequence[int]]:
        """Return which of ``size`` learners, numbered from 0, take their steps together; by default all."""
        return [range(size)]

    def setup(self, learner: Learner) -> None:
        """Create all state; every learner has the same weights."""

    def regroup(self, learner: Learner) -> None:
        """Continue after a loss or a join: ``comm`` is new, ``weights`` are the mean, ``replicated`` state is kept."""
        self.setup(learner)

    def overlap(self, learner: Learner) -> None:
        """Start, before the forward pass, the communication that overlaps it."""

    def ready(self, learner: Learner, part: slice) -> None:
        """Use this ``part`` of ``learner.grad``, final now; called in the backward pass, from the end to the start."""

    async def step(self, learner: Learner) -> None:
        """Turn ``learner.grad`` into the next ``learner.weights``, after the backward pass."""
        raise NotImplementedError

    async def average_gradients(self, learner: Learner) -> None:
        """Replace ``learner.grad`` by the mean of all learners', if that is how this strategy begins a step."""
        raise NotImplementedError(f"{type(self).__name__} averages no gradients")

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        """Reply to a request, at any moment after `setup`; ``theirs`` is valid during the call only.

        ``source`` is the requester's rank in the group it used.
        """
        raise NotImplementedError(f"{type(self).__name__} serves no requests")

    async def before_barrier(self, learner: Learner) -> None:
        """Prepare for a barrier; no step follows until it is passed."""

    async def consensus(self, learner: Learner) -> Tensor:
        """Return the weights to evaluate and save, the same on every rank; ``learner.weights`` are unchanged."""
        return await learner.comm.mean(
            learner.weights.clone(), weight=0.0 if learner.is_server else float(learner.multiplicity)
        )

    @property
    def serves_requests(self) -> bool:
        """Whether this strategy serves requests."""
        return type(self).serve is not Strategy.serve


class Asynchronous(Strategy):
    """A strategy whose learners take their steps each at its own pace."""

    def lockstep_groups(self, size: int) -> Sequence[Sequence[int]]:
        """Each learner alone."""
        return _Singles(size)


class _Singles(Sequence[Sequence[int]]):
    """Groups of one, computed on demand: with thousands of learners each would make a list of thousands."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Sequence[int]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[int]]: ...
    def __getitem__(self, index: int | slice) -> Sequence[int] | Sequence[Sequence[int]]:
        numbers = range(self._size)[index]
        return (numbers,) if isinstance(numbers, int) else [(number,) for number in numbers]


def period_setting(kind: type[Strategy]) -> str | None:
    """Return the setting that says after how many steps what a learner does repeats; ``None``: after each.

    The same with ``_frames`` behind it, where a strategy has that, is in frames and goes before it.
    """
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # strategies are dataclasses
    return next((name for name in ("block", "period") if name in names), None)
