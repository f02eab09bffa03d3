"""Placeholders for tensors, learners and tasks: they have a size and no numbers.

The strategies run with them unchanged, so that thousands of learners can be simulated for their time only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from roundelay.communicator import Communicator
from roundelay.learner import Learner
from roundelay.task import Task

LAYERS = 8  # of a model if only its size is known


class SizeOnlyTensor:
    """A vector with a number of elements and no values; every tensor operation returns the placeholder itself."""

    __slots__ = ("_numel", "nbytes")
    dtype = torch.float32
    device = torch.device("meta")  # torch's own word for tensors without values

    def __init__(self, numel: int) -> None:
        self._numel = numel
        self.nbytes = 4 * numel

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the vector."""
        return (self._numel,)

    def numel(self) -> int:
        """Return the number of elements."""
        return self._numel

    def element_size(self) -> int:
        """Return bytes per element."""
        return 4

    def __getitem__(self, part: slice) -> SizeOnlyTensor:
        start, stop, _ = part.indices(self._numel)
        return self if stop - start == self._numel else SizeOnlyTensor(max(0, stop - start))

    def __float__(self) -> float:
        return 0.0

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return self._numel

    def new_zeros(self, size: int) -> SizeOnlyTensor:
        """Return a placeholder for another vector."""
        return SizeOnlyTensor(size)

    new_empty = new_zeros

    def _self(self, *_: Any, **__: Any) -> SizeOnlyTensor:
        return self

    clone = copy_ = add_ = sub_ = mul_ = div_ = zero_ = add = sub = mul = div = lerp_ = lerp = fill_ = _self
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _self
    addcmul_ = abs = detach = contiguous = to = sign = sum = _self

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Let torch's functions return the first placeholder among their arguments."""
        for arg in (*args, *(kwargs or {}).values()):
            if isinstance(arg, SizeOnlyTensor):
                return arg
            if isinstance(arg, list | tuple) and arg and all(isinstance(each, SizeOnlyTensor) for each in arg):
                return SizeOnlyTensor(sum(each.numel() for each in arg))
        raise TypeError(f"{function} on placeholders")  # unreachable: torch calls this only with one of ours


def no_mean(xs: Sequence[Tensor], weights: Sequence[float]) -> Tensor | None:
    """Compute no mean: return ``None``, as if all weights were 0."""
    return None


class _OneNumber(nn.Module):
    """The smallest module that a learner takes."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(1))


class PlaceholderLearner(Learner):
    """A learner without a model: ``parameters`` numbers in ``layers`` equal layers, and no arithmetic."""

    def __init__(self, parameters: int, layers: int = LAYERS) -> None:
        super().__init__(_OneNumber())
        self.weights = self.snapshot = cast("Tensor", SizeOnlyTensor(parameters))
        self.slots, self.tail, self._layers = [], parameters, layers

    @property
    def grad(self) -> Tensor:
        """Return the placeholder of all vectors."""
        return self.weights

    def take_snapshot(self) -> None:
        """Take no snapshot."""

    def collect_grad(self) -> None:
        """Collect no gradient."""

    def descend(self, grad: Tensor | None = None, part: slice | None = None) -> None:
        """Take no step."""

    def move_towards(self, theirs: Tensor, share: float, *, from_snapshot: bool = False) -> Tensor:
        """Move nowhere."""
        return self.weights

    def alias_snapshot(self, *, one: bool) -> None:
        """Do nothing: there is one vector only."""

    async def sync_optimizer(
        self, how: Literal["keep", "average", "reset"], comm: Communicator, weight: float = 1.0
    ) -> None:
        """If it is to be averaged: average an optimizer state of the size of momentum."""
        if how == "average":
            await comm.mean(self.weights, weight)

    def buckets(self, bucket_bytes: int) -> list[slice]:
        """Split into parts of about ``bucket_bytes``, from the last to the first, no smaller than layers."""
        pieces = max(1, min(self._layers, self.weights.nbytes // max(1, bucket_bytes)))
        return list(reversed(self.even_parts(pieces)))

    def even_parts(self, pieces: int) -> list[slice]:
        """Split into equal parts."""
        edges = [self.tail * k // pieces for k in range(pieces + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]


class PlaceholderTask(Task):
    """A task without data: minibatches of ``frames`` frames, and no gradient."""

    def __init__(self, per_epoch: int, frames: int) -> None:
        self.minibatches_per_epoch, self.nominal_frames, self.held_out_minibatches = per_epoch, frames, 0

    def load(self, epoch: int, index: int) -> None:
        """Load nothing."""

    def gradient(self, learner: Learner, batch: Any) -> float:
        """Compute no gradient."""
        return 0.0
