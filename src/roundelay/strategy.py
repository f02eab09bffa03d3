"""What one learner does around each gradient: the base class of every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, overload

from torch import Tensor

from roundelay.communicator import Later
from roundelay.learner import Learner

__all__ = ["Asynchronous", "OptimizerState", "Strategy"]

OptimizerState = Literal["keep", "average", "reset"]
"""What happens to a learner's optimizer state when weights are averaged."""


class Strategy:
    """A dataclass whose fields are hyperparameters and whose methods are the paper's algorithm box.

    It contains no thread, lock, tag, process group, clock, fault handling, or question which runtime it is on.
    Between two awaits nothing else touches the learner.  `setup` may run many times, and makes all state anew from
    ``me.weights``, ``me.comm.rank`` and ``me.comm.size``; any number of learners from 1 up must work.  A `step` that
    raises has not happened: it may have changed ``me`` and ``self``, but what ``shared`` names only after its last
    await.  A verb that `overlap` or `ready` began is awaited in `step`.

    Ranks below ``servers`` only serve; the others train.
    """

    servers: int = 0
    """How many ranks only serve, beside the learners; they come first."""
    state: ClassVar[tuple[str, ...]] = ()
    """Attributes that a checkpoint saves: tensors, numbers, or nested strategies."""
    shared: ClassVar[tuple[str, ...]] = ()
    """The part of ``state`` that is equal on all learners: kept over a loss and handed to newcomers."""
    conserves: ClassVar[bool] = False
    """Whether mixing keeps the sum of all weights, so that only `Learner.descend` moves their mean."""
    whole: ClassVar[bool] = False
    """Whether weights change only after a step's last await, and by nobody else: no snapshot is needed to undo it."""
    mends: ClassVar[bool] = False
    """Whether a step that raises leaves weights that only lack its gradient: what it served and mixed in may stay."""
    remark: str = ""
    """In what other form it goes on, where its settings do not fit the learners that are left; set by `setup`."""
    bucket_bytes: int = 0
    """Call `ready` during the backward pass in parts of about this size; 0: never."""

    @property
    def boundary(self) -> int:
        """After how many steps newcomers are let in best: where all learners hold the same again."""
        return 1

    def keeps(self, me: Learner) -> Sequence[slice] | None:
        """Say which parts of the vector only we know; after a loss they are taken from us, all else is the mean.

        ``None``: our weights are no model at all, and are left out of the mean.
        """
        return ()

    def check(self, size: int) -> None:
        """Raise `SettingsError` where the settings do not fit ``size`` learners; called before training starts."""

    def pace(self, size: int) -> Sequence[Sequence[int]]:
        """Say which of ``size`` learners, numbered from 0, take their steps together; by default all."""
        return [range(size)]

    def setup(self, me: Learner) -> None:
        """Make all state; every learner holds the same weights."""

    def regroup(self, me: Learner) -> None:
        """After learners were lost or came: ``me.comm`` is new, ``me.weights`` the mean, ``shared`` still there."""
        self.setup(me)

    def overlap(self, me: Learner) -> None:
        """Before the forward pass: start the communication that is to overlap it."""

    def ready(self, me: Learner, part: slice) -> None:
        """During the backward pass, from the vector's end to its beginning: this part of ``me.grad`` is final."""

    async def step(self, me: Learner) -> None:
        """After the backward pass: turn ``me.grad`` into the next ``me.weights``."""
        raise NotImplementedError

    def serve(self, me: Learner, theirs: Tensor, of: int) -> Tensor | Later:
        """Answer a request, at any moment after `setup`; ``theirs`` is lent for the call.

        ``of`` is the rank of who asks, in the group in which it asked.
        """
        raise NotImplementedError(f"{type(self).__name__} serves no requests")

    async def rest(self, me: Learner) -> None:
        """Before a meeting: no step of ours follows until all have met."""

    async def consensus(self, me: Learner) -> Tensor:
        """Return the weights to evaluate and save, the same on every rank; ``me.weights`` stays."""
        return await me.comm.mean(me.weights.clone(), weight=0.0 if me.serves else float(me.stands_for))

    @property
    def answers(self) -> bool:
        """Whether this strategy serves requests at all."""
        return type(self).serve is not Strategy.serve


class Asynchronous(Strategy):
    """A strategy whose learners take their steps each at its own pace."""

    def pace(self, size: int) -> Sequence[Sequence[int]]:
        """Each learner alone."""
        return _Singles(size)


class _Singles(Sequence[Sequence[int]]):
    """The groups of one, without a list of them: there may be thousands of learners, and each asks."""

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
