"""The learner of a user loop: whatever the loop does to the model between two steps counts, as in a plain loop."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from roundelay.communicator import Communicator
from roundelay.devices import choose_device, use_device
from roundelay.errors import SettingsError
from roundelay.learner import Learner, Slot
from roundelay.strategy import Strategy
from roundelay.vectors.chunks import add_change, copy_to, same_bits, take_over

_trained: MutableMapping[Tensor, bool] = WeakIdKeyDictionary()
"""The parameters that a joined optimizer trains; a second one would undo its work."""
_buffer_owners: weakref.WeakKeyDictionary[nn.Module, weakref.ref[torch.optim.Optimizer]] = weakref.WeakKeyDictionary()
"""By model: the optimizer whose vector has the model's buffers."""


class TrainedPart(nn.Module):
    """What one optimizer trains of a model, and the model's buffers if no other optimizer has them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.roundelay_stateful = getattr(model, "roundelay_stateful", {})
        reference = _buffer_owners.get(model)
        if reference is None or reference() is None:
            reference = _buffer_owners[model] = weakref.ref(optimizer)
        self._of = [model]  # in a list: assigned directly it would be a child of this module
        self._mine = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._has_buffers = reference() is optimizer

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters that the optimizer trains, by their names in the model."""
        return ((name, p) for name, p in self._of[0].named_parameters() if id(p) in self._mine)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the same without names."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self, *_: Any, **__: Any) -> Iterator[tuple[str, Tensor]]:
        """Return the model's buffers, unless another optimizer's vector has them."""
        return self._of[0].named_buffers() if self._has_buffers else iter(())

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Return the same without names."""
        return (buffer for _, buffer in self.named_buffers())


class ModuleLearner(Learner):
    """A learner whose module's tensors never move, so that every change of them counts, whoever makes it.

    If no other learner changes our weights, the module's tensors *are* ``weights``.  If neighbours do so at any moment
    (``copied``), they are a copy, ``snapshot``; whatever becomes of that copy between two steps, by the optimizer or by
    the user, is added to ``weights``.  Gradients stay where autograd put them until a strategy reads ``grad``.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, copied: bool = False, clip: float | None = None
    ) -> None:
        self.model, self.copied = model, copied
        self.plain_step: Callable[..., Any] = optimizer.step  # perhaps a scheduler's, which counts calls, or compiled
        self.keeps_undo = False  # whether a step may have to be undone; set by the loop
        self.keeps_edits = False  # whether a server needs what the user does to the weights; set by the loop
        self.edit: Tensor | None = None  # what the user has done to them since the last push
        part = TrainedPart(model, optimizer)
        _check(model, optimizer, part)
        grads = [(parameter, parameter.grad) for parameter in part.parameters()]
        super().__init__(part, optimizer, clip=clip)
        mine = {id(place.tensor) for place in self._parameters}
        self.constants += [p for p in model.parameters() if id(p) not in mine and p.requires_grad]
        self._undo: Tensor | None = None
        self._with_gradient: set[int] | None = None  # numbers of the parameters that have a gradient on some learner
        self._find_homes()
        for parameter, grad in grads:
            parameter.grad = grad  # the user may have one already
        for place in self._parameters:
            _trained[place.tensor] = True

    # -- the module's tensors -----------------------------------------------------------------------------------

    def alias_snapshot(self, *, one: bool) -> None:
        """Let the module's tensors be the weights, unless they must be a copy."""
        super().alias_snapshot(one=one or not self.copied)
        self._find_homes()

    def _find_homes(self) -> None:
        tables = [table for module in self.model.modules() for table in (module._parameters, module._buffers)]
        found = {id(tensor): (table, name) for table in reversed(tables) for name, tensor in table.items()}
        self._owners = [found[id(place.tensor)] for place in self.slots]
        self._tensors = [place.tensor for place in self.slots]
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        self._grads = [place.view(self._grad) for place in self._parameters]
        self._given = None if self.snapshot is self.weights else self.snapshot.clone()  # what the module was given
        self._loaded = -1  # the version of the weights that the module was given

    @property
    def is_current(self) -> bool:
        """Whether the optimizer still trains the same parameters: none was unfrozen, frozen or added since."""
        assert self.optimizer is not None
        trained = {id(p) for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad}
        return trained == {id(place.tensor) for place in self._parameters}

    def heal(self) -> None:
        """Take over tensors that were assigned anew, such as ``self.mean = …`` or ``p.data = …``, and all edits."""
        self._heal_tensors()
        self._fold()

    def _heal_tensors(self) -> None:
        if not all(map(operator.is_, [table.get(name) for table, name in self._owners], self._tensors)) or (
            [tensor.data_ptr() for tensor in self._tensors] != self._addresses
        ):
            self._take_over()

    def _take_over(self) -> None:
        for place, (table, name), address in zip(self.slots, self._owners, self._addresses, strict=True):
            now = table.get(name)
            if now is not place.tensor:
                if now is None or isinstance(now, nn.Parameter):
                    raise SettingsError(
                        f"{place.name} is no longer the tensor that the optimizer trains: "
                        "change its values in place, or assign to its .data"
                    )
                place.tensor.data.copy_(now.data)
                table[name] = place.tensor  # type: ignore[assignment]  # a table of buffers
            elif now.data_ptr() != address:
                home = place.narrow if place.narrow is not None else place.view(self.snapshot)
                if now.device != home.device:
                    raise SettingsError(
                        f"the model was moved from {home.device} to {now.device} after join; "
                        "move it before, or join again"
                    )
                if now.shape != home.shape:
                    raise SettingsError(
                        f"{place.name} had the shape {[*home.shape]} and has {[*now.shape]} now: call join again"
                    )
                if (now.dtype, now.device) != (home.dtype, home.device):
                    raise SettingsError(
                        f"{place.name} was {home.dtype} on {home.device} and is {now.dtype} on {now.device} now: "
                        "call model.to() before join"
                    )
                home.copy_(now.data)
                place.tensor.data = home

    def _fold(self) -> None:
        """Add to the weights what was done to the module's copy; buffers go by way of the gradient."""
        given, head = self._given, slice(0, self.tail)
        if given is not None:
            for place in self._narrow:
                place.view(self.snapshot).copy_(place.tensor.detach())
            if same_bits(self.snapshot[head], given[head]):  # nothing was done, which takes one look to see
                return
            if self.keeps_edits:
                self.edit = torch.zeros_like(self.weights) if self.edit is None else self.edit
                self.edit[head].add_(self.snapshot[head] - given[head])
            add_change(self.weights[head], self.snapshot[head], given[head])

    def _at_snapshot(self) -> Sequence[tuple[slice, Tensor]]:
        """Return what the module was given, whatever the user has done to it since."""
        if self._given is None or self._narrow:  # narrow tensors were given rounded weights
            return [(slice(None), self.weights)]
        head, tail = slice(0, self.tail), slice(self.tail, None)
        return [(head, self._given[head]), (tail, self._before)] if self._buffers else [(head, self._given)]

    def fold_buffers(self) -> None:
        """Take over changes of buffers before a forward pass: these are the user's, later ones the gradient's."""
        if self._buffers and self._given is not None:
            self.weights[self.tail :].add_(self.snapshot[self.tail :] - self._before)

    def take_snapshot(self) -> None:
        """Give the module the weights as they are now; the gradients are the user's, and stay."""
        if self._given is not None and self.weights._version != self._loaded:
            self.load(self.weights)
            self._loaded = self.weights._version
        if self._buffers:
            self._before.copy_(self.snapshot[self.tail :])
        self._gathered = False
        if self.keeps_undo:
            self._undo = self.weights.clone() if self._undo is None else self._undo.copy_(self.weights)

    def load(self, vector: Tensor) -> None:
        """Give the module these weights and buffers; that is no edit of the user's."""
        copy_to(vector, self.snapshot, *([self._given] if self._given is not None else []))
        for place in self._narrow:
            place.tensor.data.copy_(place.view(self.snapshot))
            place.view(self.snapshot).copy_(place.tensor.detach())
            if self._given is not None:
                place.view(self._given).copy_(place.tensor.detach())
        self._loaded = -1
        if self._buffers:
            self._before.copy_(self.snapshot[self.tail :])

    def shown(self) -> Tensor:
        """Return a copy of what the module has now."""
        return self.snapshot.clone()

    def undo_step(self) -> None:
        """Undo an unfinished step."""
        if self._undo is not None:
            self.weights.copy_(self._undo)
        if self._buffers:
            self.snapshot[self.tail :].copy_(self._before)

    def release(self, *, keep_grads: bool = False) -> None:
        """Give the module's tensors memory of their own again: a file of one layer then has that layer alone."""
        for place in self.slots:
            if place.narrow is None:
                place.tensor.data = place.tensor.data.clone()
                if place.part.start < self.tail and not keep_grads:
                    place.tensor.grad = None
        for place in self._parameters:
            _trained.pop(place.tensor, None)

    # -- the gradient -------------------------------------------------------------------------------------------

    @property
    def grad(self) -> Tensor:
        """The flat gradient; the parameters' ``.grad`` become views into it when this is first read."""
        if not self._gathered:
            self._gathered = True
            pairs = list(zip(self._grads, self.grads, strict=True))
            found = [(view, grad) for view, grad in pairs if grad is not None]
            if found:
                _copy_all([view for view, _ in found], [grad for _, grad in found])
            for view, grad in pairs if len(found) < len(pairs) else ():
                if grad is None:
                    view.zero_()
            for place, view in zip(self._parameters, self._grads, strict=True):
                if place.narrow is None:
                    place.tensor.grad = view
        return self._grad

    @property
    def own_grads(self) -> list[Tensor]:
        """The gradients that the parameters have, where autograd put them."""
        return [grad for place in self._parameters if (grad := place.tensor.grad) is not None]

    @property
    def own_slots(self) -> Sequence[Slot]:
        """The parameters in the vector."""
        return self._parameters

    @property
    def grads(self) -> list[Tensor | None]:
        """The gradients of all parameters in the vector, in its order."""
        return [place.tensor.grad for place in self._parameters]

    def set_grads(self, grads: Sequence[Tensor | None]) -> None:
        """Give the parameters these gradients, in the order of the vector."""
        for place, grad in zip(self._parameters, grads, strict=True):
            place.tensor.grad = grad

    def collect_grad(self) -> None:
        """Complete ``grad`` after the backward pass, the change of the buffers included."""
        self._heal_tensors()
        if self.keeps_edits or self._narrow:  # else `descend` adds edits and the optimizer's step at once
            self._fold()
        self._gathered = False
        if self._buffers:
            torch.sub(self.snapshot[self.tail :], self._before, out=self._grad[self.tail :])
            self.snapshot[self.tail :].copy_(self._before)

    def averaged(self) -> None:
        """Note that ``grad`` is the mean of all learners' now; a further backward pass may add to it."""
        if self._buffers:  # their mean change counts at once, so that the next forward pass continues from it
            tail = self._grad[self.tail :]
            self._before.add_(tail)
            self.snapshot[self.tail :].copy_(self._before)
            self.weights[self.tail :].copy_(self._before)
            tail.zero_()

    def forget_gradients(self) -> None:
        """Let all learners agree anew on which parameters get a gradient."""
        self._with_gradient = None

    async def agree_on_gradients(self, comm: Communicator) -> None:
        """Agree once on which parameters get a gradient at all: PyTorch leaves the others alone, and so do all."""
        if self._with_gradient is None:
            mine = torch.tensor([place.tensor.grad is not None for place in self._parameters], dtype=torch.uint8)
            everyone = await comm.gather(mine)
            self._with_gradient = {number for flags in everyone for number in flags.nonzero().flatten().tolist()}

    def descend(self, grad: Tensor | None = None, part: slice | None = None) -> None:
        """Let the optimizer take its step where the module's tensors are."""
        if grad is None and not self.frames:
            self._fold()
            return
        if self._narrow:
            super().descend(grad, part)
            return
        if grad is not None or self.clip is not None:
            flat = self.grad
            if grad is not None and grad is not flat:
                flat.copy_(grad)
            self.clip_grad_(flat)
            if self._with_gradient is not None:
                self._leave_alone(self._with_gradient)
        self.step_optimizer()
        if self._buffers:
            self.weights[self.tail :].add_(self._grad[self.tail :])
        if self._given is None or self.keeps_edits:
            self._fold()
            return
        head, tail = slice(0, self.tail), slice(self.tail, None)
        take_over(self.weights[head], self.snapshot[head], self._given[head])
        if self._buffers:
            copy_to(self.weights[tail], self.snapshot[tail], self._before)
        self._loaded = self.weights._version  # the module has the weights as they are now

    def _leave_alone(self, known: set[int]) -> None:
        """Take the gradient from parameters that have none on any learner."""
        if len(known) < len(self._parameters):
            for number, place in enumerate(self._parameters):
                if number not in known:
                    if bool(self._grads[number].any()):
                        known.add(number)
                    else:
                        place.tensor.grad = None

    def outgoing(self, x: Tensor, part: slice) -> Tensor:
        """Send along what a server needs to step for us: our rates as they are now, and the user's edits."""
        if not self.keeps_edits:
            return x[part]
        assert self.optimizer is not None
        rates = exact_rates(self.optimizer, self.weights)
        edit, self.edit = self.edit, None if part.stop == self.weights.numel() else self.edit
        return torch.cat([x[part], rates] if edit is None else [x[part], rates, edit[part]])

    def call_optimizer(self) -> None:
        """Call what ``optimizer.step`` was before the loop was joined."""
        self.plain_step()

    def _make_moments(self, fresh: Sequence[Slot]) -> None:
        grads = [place.tensor.grad for place in self._parameters]
        super()._make_moments(fresh)
        self.set_grads(grads)


def _copy_all(views: list[Tensor], grads: list[Tensor]) -> None:
    """Copy gradients into the vector; nothing is looked at unless that fails."""
    try:
        torch._foreach_copy_(views, grads)
    except RuntimeError as error:
        if any(grad.layout is not torch.strided for grad in grads):
            raise SettingsError(
                "a gradient is sparse, which no strategy can average; use sparse=False in the embedding"
            ) from error
        raise


def check_frames(strategy: Strategy, minibatch_frames: int | None) -> None:
    """Name a setting in frames of which nobody has said how many a minibatch has."""
    if minibatch_frames is not None:
        if minibatch_frames < 1:
            raise SettingsError(f"join: minibatch_frames must be at least 1, not {minibatch_frames}")
        return
    for field in dataclasses.fields(strategy):  # type: ignore[arg-type]  # strategies are dataclasses
        value = getattr(strategy, field.name)
        if isinstance(value, Strategy):
            check_frames(value, None)
        elif field.name.endswith("_frames") and value is not None:
            raise SettingsError(
                f"join: strategy.{field.name} is in frames; say how many a full minibatch has, by minibatch_frames="
            )


def check_several(model: nn.Module) -> None:
    """Name what cannot be trained by several learners."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise SettingsError(
                f"join: {name} is a SyncBatchNorm, whose forward pass waits for all learners; use BatchNorm: "
                "strategies average its statistics"
            )


def move_model(model: nn.Module, optimizer: torch.optim.Optimizer, asked: str) -> None:
    """Move a model, and what its optimizer keeps of its parameters, to this process's device."""
    device = choose_device(asked)
    use_device(device)
    before = list(model.parameters())
    model.to(device)
    moved = {id(old): new for old, new in zip(before, model.parameters(), strict=True)}  # on some devices: new ones
    for group in optimizer.param_groups:
        group["params"] = [moved.get(id(parameter), parameter) for parameter in group["params"]]
    for parameter in list(optimizer.state):
        optimizer.state[moved.get(id(parameter), parameter)] = optimizer.state.pop(parameter)
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = value.to(device)


def exact_rates(optimizer: torch.optim.Optimizer, like: Tensor) -> Tensor:
    """Return the rate of each group, exact, as numbers of the type of ``like``."""
    rates = torch.tensor([float(group["lr"]) for group in optimizer.param_groups], dtype=torch.float64)
    return rates.view(like.dtype).to(like.device)


def _check(model: nn.Module, optimizer: torch.optim.Optimizer, part: TrainedPart) -> None:
    """Name what cannot be trained in a user loop, before anything else happens."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise SettingsError("join: the model is wrapped in DistributedDataParallel; give join the module inside it")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise SettingsError(
            f"join: {type(optimizer).__name__} evaluates the loss several times a step, which no strategy can; "
            "use another optimizer, such as AdamW"
        )
    trained = [(name, p) for name, p in part.named_parameters() if p.requires_grad]
    if not trained:
        raise SettingsError("join: the optimizer has none of the model's parameters that require a gradient")
    for name, parameter in trained:
        if parameter in _trained:
            raise SettingsError(f"join: {name} is trained by another optimizer that was joined; close that one first")
        if type(parameter.data) not in (Tensor, nn.Parameter):  # DTensor of FSDP, quantized, …
            raise SettingsError(
                f"join: {name} is a {type(parameter.data).__name__}, of which this process has only a part; "
                "strategies need whole tensors"
            )
    devices = {str(parameter.device) for _, parameter in trained}
    if len(devices) > 1:
        raise SettingsError(f"join: the parameters are on {', '.join(sorted(devices))}; strategies need one device")
