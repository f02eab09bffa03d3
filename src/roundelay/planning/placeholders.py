"""Timing only: stand-ins for tensors and learners that carry a size and nothing else.

The strategies' own files run with them, so that thousands of learners can be simulated for what they cost in time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.learner import Learner
from roundelay.runs.record import Kind, Record
from roundelay.task import Scores, Task

__all__ = [
    "LAYERS",
    "SizeOnlyTensor",
    "StandInLearner",
    "StandInTask",
    "TallyMark",
    "TotalsRecord",
    "mean_of_stand_ins",
]

LAYERS = 8  # of a model of which only the size is known


class SizeOnlyTensor:
    """Something with a number of elements that answers to every operation of a tensor with itself."""

    __slots__ = ("_numel", "nbytes")
    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, numel: int) -> None:
        self._numel = numel
        self.nbytes = 4 * numel

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the vector it stands for."""
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
        """Stand in for another vector."""
        return SizeOnlyTensor(size)

    def _self(self, *_: Any, **__: Any) -> SizeOnlyTensor:
        return self

    clone = copy_ = add_ = sub_ = mul_ = div_ = zero_ = add = sub = mul = div = lerp_ = lerp = fill_ = _self
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = _self
    addcmul_ = abs = detach = contiguous = to = sign = sum = _self

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Answer torch's functions with the first stand-in among their arguments."""
        for arg in (*args, *(kwargs or {}).values()):
            if isinstance(arg, SizeOnlyTensor):
                return arg
            if isinstance(arg, list | tuple) and arg and all(isinstance(each, SizeOnlyTensor) for each in arg):
                return SizeOnlyTensor(sum(each.numel() for each in arg))
        raise TypeError(f"{function} on stand-ins")  # torch calls us only with one of ours


@dataclass
class TallyMark:
    """What a `Tally` knew when so many steps had ended."""

    time: float
    totals: dict[str, dict[str, float]]
    links: dict[str, list[tuple[float, float]]]


class TotalsRecord(Record):
    """A record that keeps only totals and the times at which steps ended; at some ``marks`` it takes a snapshot."""

    def __init__(self, marks: Sequence[int] = ()) -> None:
        super().__init__(None, clock="virtual")
        self.steps: list[float] = []
        self.whose: list[str] = []  # each step is
        self.snapshots: list[TallyMark] = []
        self.links: Callable[[], dict[str, list[tuple[float, float]]]] = dict
        self._marks = frozenset(marks)

    def write(self, event: str, member: str, time: float, **what: Any) -> None:
        """Count the step."""
        if event == "step":
            self.steps.append(time)
            self.whose.append(member)
            if len(self.steps) in self._marks:
                totals = {member: dict(totals) for member, totals in self.totals.items()}
                self.snapshots.append(TallyMark(time, totals, self.links()))

    def span(self, kind: Kind, member: str, begin: float, end: float, **what: Any) -> None:
        """Add to the total, and count."""
        if end > begin:
            totals = self.totals[member]
            totals[kind] += end - begin
            totals[f"{kind} count"] += 1


def mean_of_stand_ins(xs: Sequence[Tensor], weights: Sequence[float]) -> Tensor | None:
    """Compute no mean."""
    return None


class StandInLearner(Learner):
    """A learner without a model: ``parameters`` numbers in ``layers`` equal layers, and no arithmetic."""

    def __init__(self, parameters: int, layers: int = LAYERS) -> None:
        self.comm: Communicator
        vector = cast("Tensor", SizeOnlyTensor(parameters))
        self.weights = self.snapshot = vector
        self.nominal_frames, self.frames, self.minibatch, self.index = 1, 0, 0, 0
        self.lr_factor, self.descent_sum, self.is_server, self.debug = 1.0, 0.0, False, False
        self.optimizer, self.clip = None, None
        self.metrics, self.stateful, self.slots, self.constants = [], {}, [], []
        self.tail, self._layers = parameters, layers

    @property
    def grad(self) -> Tensor:
        """Stand in for the gradient as for all vectors."""
        return self.weights

    def take_snapshot(self) -> None:
        """Take no snapshot."""

    def collect_grad(self) -> None:
        """Collect nothing."""

    def descend(self, grad: Tensor | None = None, part: slice | None = None) -> None:
        """Stay."""

    def alias_snapshot(self, *, one: bool) -> None:
        """Keep what there is."""

    async def sync_optimizer(
        self, how: Literal["keep", "average", "reset"], comm: Communicator, weight: float = 1.0
    ) -> None:
        """Average as large an optimizer state as momentum has, where that is asked for."""
        if how == "average":
            await comm.mean(self.weights, weight)

    def buckets(self, bucket_bytes: int) -> list[slice]:
        """Cut into parts of about ``bucket_bytes``, from the last to the first, no finer than layers."""
        pieces = max(1, min(self._layers, self.weights.nbytes // max(1, bucket_bytes)))
        return list(reversed(self.even_parts(pieces)))

    def even_parts(self, pieces: int) -> list[slice]:
        """Cut into equal parts."""
        edges = [self.tail * k // pieces for k in range(pieces + 1)]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]


class StandInTask(Task):
    """A task without data: minibatches of so many frames, and a gradient that is not taken."""

    def __init__(self, per_epoch: int, frames: int) -> None:
        self.minibatches_per_epoch, self.nominal_frames, self.held_out_minibatches = per_epoch, frames, 0

    def load(self, epoch: int, index: int) -> None:
        """Load nothing."""

    def gradient(self, learner: Learner, batch: Any) -> float:
        """Take no gradient."""
        return 0.0

    def score(self, module: Any, index: int) -> Scores:
        """Score nothing."""
        return {}
