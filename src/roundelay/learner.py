"""One learner: a module, its optimizer, and the flat vectors by which strategies see them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from roundelay.errors import SettingsError
from roundelay.vectors.chunks import move_towards

if TYPE_CHECKING:
    from roundelay.communicator import Communicator


ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register


class Stateful(Protocol):
    """An object with state that belongs to one learner: NG-SGD factors, a residual, ….

    A module names its own in a dict ``roundelay_stateful``.
    """

    def attach(self, learner: Learner) -> None:
        """Become part of ``learner``."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all state as tensors."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""


@dataclass(frozen=True, eq=False)
class Slot:
    """Where a parameter or a buffer lies in the vector."""

    name: str
    tensor: Tensor
    part: slice
    narrow: Tensor | None
    """The storage of a tensor whose type is narrower than the vector's, which therefore cannot be a view into it."""

    def view(self, vector: Tensor) -> Tensor:
        """Return this tensor's part of ``vector``, in its shape."""
        return vector[self.part].view(self.tensor.shape)


class Learner:
    """Flat ``weights``, a ``snapshot`` of them, and the flat ``grad`` computed at it.

    The vector holds all trained parameters, each at a multiple of 64 bytes, and after them, from index ``tail`` on, all
    floating buffers.  The module's tensors are views into ``snapshot`` and ``grad``: a request served during the
    backward pass changes only ``weights``.  Parameters of a type narrower than the vector's are cast at the snapshot.

    Buffers (batch-norm statistics) are part of the vector: the forward pass changes them in ``snapshot``, the *change*
    goes into the tail of ``grad``, and `descend` adds it to ``weights``.  So a strategy treats statistics as it treats
    gradients and weights.  Frozen parameters and integer buffers are ``constants``: the same on all learners.
    """

    comm: Communicator
    """All ranks of this run, servers first; set by the runtime.  In `Hierarchical`: the leaders of all nodes."""
    schedule: Callable[[float], float] | None = None
    """A factor of the learning rate, by frames of the whole run; set by the loop."""
    rollback_lr_factor: float = 1.0
    """Another factor of the learning rate, below 1 after the run was rolled back; set by the loop."""
    precision: torch.dtype = torch.float32
    """What the forward pass computes in where torch's autocast does; weights and their gradients keep their type."""
    multiplicity: int = 1
    """How many learners this one represents in a mean of weights; a node's leader: the node."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        clip: float | None = None,
        nominal_frames: int = 1,
        debug: bool = False,
    ) -> None:
        self.module, self.optimizer, self.clip, self.debug = module, optimizer, clip, debug
        self.nominal_frames = nominal_frames
        self.frames = 0  # in this learner's minibatch; 0: it has none and takes part with weight 0
        self.minibatch = 0  # position of that minibatch in the whole run; on a server: how many it has applied
        self.lr_factor = 1.0  # of the learning rate, by the schedule
        self.index = 0  # among the learners, from 0; a server's among the servers
        self.is_server = False
        self.descent_sum = 0.0  # how much `descend` has changed the sum of the weights; debug mode only
        self.metrics: list[tuple[str, float]] = []
        self.stateful: dict[str, Stateful] = dict(getattr(module, "roundelay_stateful", {}))
        for owner in self.stateful.values():
            owner.attach(self)
        self.slots, self.constants, self.tail, blank = make_layout(module)
        self._parameters = [place for place in self.slots if place.part.start < self.tail]
        self._buffers = [place for place in self.slots if place.part.start >= self.tail]
        self._narrow = [place for place in self.slots if place.narrow is not None]
        self.snapshot, self.weights, self._grad = blank, blank.clone(), torch.zeros_like(blank)
        self._gathered = False  # whether the parameters' gradients are in ``_grad``, or still where autograd put them
        for place in self.slots:
            place.view(self.snapshot).copy_(place.tensor.detach())
        self.weights.copy_(self.snapshot)
        self._before = self.snapshot[self.tail :].clone()
        self._point(self.snapshot, self._grad)
        self._point_buffers()

    @property
    def grad(self) -> Tensor:
        """The flat gradient; the parameters' ``.grad`` become views into it when this is first read."""
        if not self._gathered:
            self._gathered = True
            for place in self._parameters:
                self._gather(place)
        return self._grad

    def _gather(self, place: Slot) -> None:
        """Copy a parameter's gradient to its slot in the vector."""
        own, mine = place.tensor.grad, place.view(self._grad)
        if own is None:
            mine.zero_()
        elif own.data_ptr() != mine.data_ptr():
            mine.copy_(own)
        if place.narrow is None:
            place.tensor.grad = mine

    @property
    def weight(self) -> float:
        """Our weight in a mean over learners: frames in units of a full minibatch, so 1 for a full one."""
        return self.frames / self.nominal_frames

    def narrow_computation(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass: autocast to ``precision``, if that is narrow."""
        if self.precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.weights.device.type, self.precision)

    # -- around the gradient ------------------------------------------------------------------------------------

    @property
    def shapes(self) -> list[list[Any]]:
        """The name and shape of each parameter and buffer in the vector, in its order."""
        return [[place.name, list(place.tensor.shape)] for place in self.slots]

    def set_position(self, minibatch: int) -> None:
        """Set the position in the run; the learning rate depends on it."""
        self.minibatch = minibatch
        self.lr_factor = self.rollback_lr_factor * (
            self.schedule(minibatch * self.nominal_frames) if self.schedule is not None else 1.0
        )

    def take_snapshot(self) -> None:
        """Copy the weights to the snapshot at which the gradient is computed, and clear the gradient."""
        if self.snapshot is not self.weights:
            self.snapshot.copy_(self.weights)
        for place in self._narrow:
            place.tensor.data.copy_(place.view(self.snapshot))
        if self._buffers:
            self._before.copy_(self.snapshot[self.tail :])
        self._gathered = False
        for place in self._parameters:
            place.tensor.grad = None  # then autograd stores its own tensor instead of adding to ours

    def collect_grad(self) -> None:
        """Complete ``grad`` after the backward pass, the change of the buffers included."""
        self._return_to_vector()
        if self._gathered:  # before the backward pass; zero_grad(set_to_none=True) may have undone it since
            for place in self._parameters:
                if place.tensor.grad is not None:
                    self._gather(place)
        if self._buffers:
            for place in self._buffers:
                if place.tensor.data_ptr() != place.view(self.snapshot).data_ptr():
                    place.view(self.snapshot).copy_(place.tensor)
            torch.sub(self.snapshot[self.tail :], self._before, out=self._grad[self.tail :])
            self.snapshot[self.tail :].copy_(self._before)

    def _return_to_vector(self) -> None:
        """Take back parameters that the forward pass has moved, as a recurrent layer's ``flatten_parameters`` does.

        Left alone they would keep the weights of this step for ever.
        """
        if not self._narrow and self._is_home():
            return
        for place in self._parameters:
            home = place.narrow if place.narrow is not None else place.view(self.snapshot)
            if place.tensor.data_ptr() != home.data_ptr():
                if place.tensor.shape != home.shape or place.tensor.device != home.device:
                    raise SettingsError(
                        f"{place.name} was {[*home.shape]} on {home.device} and is {[*place.tensor.shape]} on "
                        f"{place.tensor.device} after the forward pass; keep its shape and its device"
                    )
                place.tensor.data = home.copy_(place.tensor.detach())

    def discard(self) -> None:
        """Discard this minibatch: zero the gradient, set its weight to 0."""
        self.frames = 0
        self.grad.zero_()

    def descend(self, grad: Tensor | None = None, part: slice | None = None) -> None:
        """Take one step of the optimizer on ``weights`` along ``grad``, which it may change.

        Without ``grad``, along our own; then a learner without a minibatch does not move.
        With ``part``, which must begin and end between parameters, only the parameters in it move.
        """
        if grad is None:
            if not self.frames:
                return
            grad = self._grad if self._can_stay() else self.grad
        before = self._sum() if self.debug else 0.0
        if grad is self._grad and not self._gathered:
            self._point_data(self.weights)
            self.step_optimizer()
            self._point_data(self.snapshot)
        else:
            self.clip_grad_(grad)
            self._point(self.weights, grad, part)
            self.step_optimizer()
            self._point(self.snapshot, self._grad)
        if self._buffers:
            inside = slice(max(self.tail, part.start), max(self.tail, part.stop)) if part else slice(self.tail, None)
            self.weights[inside].add_(grad[inside])
        if self.debug:
            self.descent_sum += self._sum() - before

    def _can_stay(self) -> bool:
        """Return whether the optimizer can use the gradients where autograd put them, which saves a copy."""
        if self._gathered or self._narrow or self.clip is not None:
            return False
        return all(place.tensor.grad is not None for place in self._parameters)

    def clip_grad_(self, grad: Tensor) -> None:
        """Scale the parameters' part of ``grad`` down to norm ``clip``, if that is set."""
        if self.clip is not None:
            part = grad[: self.tail]
            part.mul_(torch.clamp(self.clip / (torch.linalg.vector_norm(part) + 1e-6), max=1.0))

    def step_optimizer(self) -> None:
        """Let the optimizer step at the scheduled rate."""
        if self.optimizer is None:
            raise SettingsError("this learner has no optimizer, and its strategy wants to take a step")
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        if self.lr_factor != 1.0:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * self.lr_factor
        self.call_optimizer()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def outgoing(self, x: Tensor, part: slice) -> Tensor:
        """Return what is sent to the server that steps for us in ``part``: the gradient ``x`` there."""
        return x[part]

    def incoming(self, theirs: Tensor, part: slice) -> Tensor:
        """Return the gradient in what a learner has sent."""
        return theirs

    def call_optimizer(self) -> None:
        """Call the optimizer's own step."""
        assert self.optimizer is not None
        type(self.optimizer).step(self.optimizer)  # of the class: a user loop has its own in the instance

    def move_towards(self, theirs: Tensor, share: float, *, from_snapshot: bool = False) -> Tensor:
        """Add ``share`` of the way from our weights, or from those at the snapshot, to ``theirs``.

        Return what was added, to reply to a request with.
        """
        weights, added = self.weights, self.comm.blank(self.weights)
        for part, then in self._at_snapshot() if from_snapshot else ((slice(None), weights),):
            move_towards(weights[part], then, theirs[part], share, added[part])
        return added

    def _at_snapshot(self) -> Sequence[tuple[slice, Tensor]]:
        """Return the parts of the weights at the snapshot; a forward pass has changed its buffers since."""
        head, tail = slice(0, self.tail), slice(self.tail, None)
        return [(head, self.snapshot[head]), (tail, self._before)] if self._buffers else [(head, self.snapshot)]

    def undo_step(self) -> None:
        """Undo an unfinished step: return to the weights at which its gradient was computed."""
        self.weights.copy_(self.snapshot)

    # -- optimizer state ----------------------------------------------------------------------------------------

    def moments(self, part: slice | None = None) -> list[Tensor]:
        """Return all tensors of the optimizer's state, or of a ``part`` of the vector; create them if there are none.

        Their order is the same on every learner.
        """
        if self.optimizer is None:
            return []
        fresh = [place for place in self._parameters if place.tensor not in self.optimizer.state]
        if fresh:  # a server steps in its own part only
            self._make_moments(fresh)
        return self._moments(part)

    def _moments(self, part: slice | None = None) -> list[Tensor]:
        assert self.optimizer is not None
        return [
            value
            for place in self._parameters
            if part is None or part.start <= place.part.start < part.stop
            for _, value in sorted(self.optimizer.state.get(place.tensor, {}).items())
            if isinstance(value, Tensor)
        ]

    async def sync_optimizer(
        self, how: Literal["keep", "average", "reset"], comm: Communicator, weight: float = 1.0
    ) -> None:
        """Keep, average over ``comm``, or reset the optimizer's state; called after weights were averaged."""
        if how == "reset" and self.optimizer is not None:
            self.optimizer.state.clear()
        if how == "average" and comm.size > 1 and (moments := self.moments()):
            flat = torch.cat([moment.reshape(-1).to(self.weights) for moment in moments])
            await comm.mean(flat, weight)
            for moment, mean in zip(moments, flat.split([moment.numel() for moment in moments]), strict=True):
                moment.copy_(mean.view(moment.shape))

    def _make_moments(self, fresh: Sequence[Slot]) -> None:
        # A step along a zero gradient, on a copy of the weights, makes the optimizer create its state; zeroed, it is
        # the state before the first step of every optimizer whose moments start at zero.
        assert self.optimizer is not None
        scratch = self.weights.clone()
        self._point(scratch, torch.zeros_like(scratch))
        for place in self._parameters:
            if place not in fresh:
                place.tensor.grad = None
        self.step_optimizer()
        self._point(self.snapshot, self._grad)
        for place in fresh:
            for moment in self.optimizer.state.get(place.tensor, {}).values():  # none of SGD without momentum
                if isinstance(moment, Tensor):
                    moment.zero_()

    # -- views --------------------------------------------------------------------------------------------------

    def log(self, name: str, value: float) -> None:
        """Record a metric of this step, such as its staleness."""
        self.metrics.append((name, value))

    def alias_snapshot(self, *, one: bool) -> None:
        """Let snapshot and weights be ``one`` vector (saves a copy if no step is ever undone) or two."""
        one = one and not self._narrow
        if one != (self.snapshot is self.weights):
            self.snapshot = self.weights if one else self.weights.clone()
            self._point_data(self.snapshot)
            self._point_buffers()

    def load(self, vector: Tensor) -> None:
        """Give the module the weights and buffers of ``vector`` until the next `take_snapshot`; for evaluation."""
        for place in self.slots:
            place.tensor.data.copy_(place.view(vector))

    def buckets(self, bucket_bytes: int) -> list[slice]:
        """Split the vector between parameters into buckets of at least ``bucket_bytes``, from the last to the first.

        That is about the order in which the backward pass finishes them.  The buffers are the last bucket.
        """
        parts, end = [], self.tail
        for place in reversed(self._parameters):
            if (end - place.part.start) * self.weights.element_size() >= bucket_bytes or place.part.start == 0:
                parts.append(slice(place.part.start, end))
                end = place.part.start
        return [*parts, slice(self.tail, self.weights.numel())] if self._buffers else parts

    def even_parts(self, pieces: int) -> list[slice]:
        """Split the vector between parameters into ``pieces`` parts of about equal size."""
        size, starts = self.weights.numel(), [place.part.start for place in self.slots]
        bounds = [min(starts, key=lambda start: abs(start - size * k / pieces)) for k in range(1, pieces)]
        edges = [0, *sorted(bounds), size]
        return [slice(a, b) for a, b in itertools.pairwise(edges)]

    def hook_buckets(self, parts: Sequence[slice], call: Callable[[slice], None]) -> Callable[[], None]:
        """Call ``call`` for each bucket, in order, as soon as the backward pass has finished its gradient.

        Return what must be called after `collect`: it tells of the parts that are left, and takes the hooks away.
        """
        waiting = [sum(part.start <= p.part.start < part.stop for p in self._parameters) for part in parts]
        told, late = 0, {place.name: place for place in self._parameters}
        self._gathered = True

        def final(place: Slot) -> None:
            nonlocal told
            self._gather(late.pop(place.name))
            waiting[next(k for k, part in enumerate(parts) if part.start <= place.part.start < part.stop)] -= 1
            while told < len(parts) and waiting[told] == 0 and parts[told].start < self.tail:
                told += 1
                call(parts[told - 1])

        handles = [
            place.tensor.register_post_accumulate_grad_hook(functools.partial(_forward_place, final, place))
            for place in self._parameters
        ]

        def finish() -> None:
            for handle in handles:
                handle.remove()
            for place in late.values():  # which got no gradient
                self._gather(place)
            for part in parts[told:]:
                call(part)

        return finish

    def _point_data(self, weights: Tensor) -> None:
        """Point the parameters at ``weights``, and leave their gradients alone."""
        if self.snapshot is self.weights and weights is self.weights and self._is_home():
            return
        for place in self._parameters:
            place.tensor.data = (
                place.narrow if weights is self.snapshot and place.narrow is not None else place.view(weights)
            )

    def _is_home(self) -> bool:
        """Return whether all parameters are in the snapshot."""
        base, width = self.snapshot.data_ptr(), self.snapshot.element_size()
        return all(place.tensor.data_ptr() == base + width * place.part.start for place in self._parameters)

    def _point(self, weights: Tensor, grad: Tensor, part: slice | None = None) -> None:
        """Point the parameters at ``weights`` and their gradients at ``grad``, those outside ``part`` at none."""
        for place in self._parameters:
            if weights is self.snapshot and place.narrow is not None:
                place.tensor.grad, place.tensor.data = None, place.narrow
                continue
            inside = part is None or (part.start <= place.part.start and place.part.stop <= part.stop)
            place.tensor.grad, place.tensor.data = None, place.view(weights)
            place.tensor.grad = place.view(grad) if inside else None

    def _point_buffers(self) -> None:
        for place in self._buffers:
            if place.narrow is None:
                place.tensor.data = place.view(self.snapshot)

    def _sum(self) -> float:
        return float(self.weights.sum(dtype=torch.float64))


def _forward_place(call: Callable[[Slot], None], place: Slot, _: Tensor) -> None:
    call(place)


def make_layout(module: nn.Module) -> tuple[list[Slot], list[Tensor], int, Tensor]:
    """Give every trained parameter and floating buffer its place; also: the constants, the tail, a blank vector."""
    parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    buffers = [(name, b) for name, b in module.named_buffers() if b.is_floating_point()]
    constants: list[Tensor] = [p for p in module.parameters() if not p.requires_grad]
    constants += [b for b in module.buffers() if not b.is_floating_point()]
    if not parameters:
        raise SettingsError(f"{type(module).__name__} has no parameter that requires a gradient: nothing to train")
    wide = [torch.float64] if any(p.dtype == torch.float64 for _, p in parameters) else [torch.float32]
    devices = sorted({str(tensor.device) for _, tensor in [*parameters, *buffers]})
    if len(devices) > 1:
        raise SettingsError(f"the model is on {' and '.join(devices)}; a learner needs all of it on one device")
    blank = torch.zeros(0, dtype=wide[0], device=parameters[0][1].device)
    unit = ALIGNMENT_BYTES // blank.element_size()
    places, begin, tail = [], 0, 0
    for index, (name, tensor) in enumerate([*parameters, *buffers]):
        narrow = tensor.data if tensor.dtype != blank.dtype else None
        places.append(Slot(name, tensor, slice(begin, begin + tensor.numel()), narrow))
        begin += -(-tensor.numel() // unit) * unit
        if index + 1 == len(parameters):
            tail = begin
    return places, constants, tail, blank.new_zeros(begin)
