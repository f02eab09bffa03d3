"""A user's own model, loader and loss as a task."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.devices import device_of, to_device
from roundelay.errors import SettingsError
from roundelay.task import Scores, Task
from roundelay.tasks.loader_minibatches import NumberedMinibatches, RandomStates, keep, number_minibatches

MODEL = 4  # what random numbers are drawn for, beside those of minibatches
TAKES_MODEL = ("model", "module")
RESERVED = ("frames", "distance", "loss")
OfBatch = Callable[[nn.Module, Any], Any]


class ModelTask(Task):
    """Train ``make_model()`` on the minibatches of ``loader`` by ``loss``.

    ``make_model`` makes a new model at each call; a model itself is copied.  ``loader`` is a DataLoader, any other
    iterable of minibatches, or a list.  A ``loss`` whose first parameter is called ``model`` is called as ``loss(model,
    batch)``; any other as ``loss(model(inputs), targets)``, where a minibatch ends with its targets.  It is a mean.

    ``held_out`` are minibatches to evaluate on; ``evaluate`` returns further scores of one, by name, as means, and is
    called like the loss.  ``frames`` counts what a minibatch has; by default its samples, the length of its first
    tensor.  An iterable without a length has ``minibatches`` in an epoch, or all that it gives.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module] | nn.Module,
        loader: Any,
        loss: Callable[..., Tensor],
        *,
        held_out: Any = None,
        evaluate: Callable[..., Mapping[str, Any]] | None = None,
        frames: Callable[[Any], int] | None = None,
        minibatches: int | None = None,
        seed: int = 0,
    ) -> None:
        _check_callables(make_model, loss, evaluate)
        if evaluate is not None and held_out is None:
            raise SettingsError("evaluate: give held_out too, a loader of the minibatches to evaluate on")
        self._make_model, self._most, self._count = make_model, minibatches, frames
        self._loader = keep(loader, "loader", minibatches)
        self._loss = _take_model_and_batch(loss)
        self._evaluate = _take_model_and_batch(evaluate) if evaluate is not None else None
        self._held_out = _held_out(held_out) if held_out is not None else None
        self.held_out_minibatches = self._held_out.per_epoch if self._held_out is not None else 0
        self._start(seed)
        first = self._minibatches.load(0)
        samples = self._minibatches.samples(0)
        self.nominal_frames = samples if samples is not None and frames is None else self._count_frames(first)
        self.score_names = self._check(first)  # type: ignore[misc]  # of this task: they depend on ``evaluate``

    def _start(self, seed: int) -> None:
        self.seed = seed
        self._minibatches: NumberedMinibatches = number_minibatches(self._loader, "loader", seed=seed, most=self._most)
        self.minibatches_per_epoch = self._minibatches.per_epoch
        self._ahead: tuple[int, Any] | None = None  # a minibatch that was loaded to count its frames

    def with_seed(self, seed: int) -> ModelTask:
        """Return the task with another initial model and another order of minibatches."""
        other = copy.copy(self)
        other._start(seed)
        return other

    def make_module(self) -> nn.Module:
        """Make the model, the same each time."""
        with RandomStates(self.seed, MODEL):
            model = copy.deepcopy(self._make_model) if isinstance(self._make_model, nn.Module) else self._make_model()
        if not isinstance(model, nn.Module):
            raise SettingsError(f"make_model: must return a torch.nn.Module, not a {type(model).__name__}")
        return model

    def frames(self, epoch: int, index: int) -> int:
        """Return the number of frames in a minibatch; it is loaded for that if only the minibatch itself shows it."""
        number = self._number(epoch, index)
        samples = self._minibatches.samples(number) if self._count is None else None
        if samples is not None:
            return samples
        batch = self._minibatches.load(number)
        self._ahead = number, batch
        return self._count_frames(batch)

    def load(self, epoch: int, index: int) -> Any:
        """Return a minibatch."""
        number, ahead = self._number(epoch, index), self._ahead
        self._ahead = None
        return ahead[1] if ahead is not None and ahead[0] == number else self._minibatches.load(number)

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss."""
        value = self._loss(module, batch)
        if not isinstance(value, Tensor):
            raise SettingsError(f"loss: must return a tensor, not a {type(value).__name__}")
        if value.numel() != 1:
            raise SettingsError(f"loss: must return one number, a mean, not a tensor of shape {tuple(value.shape)}")
        return value.reshape(())

    def score(self, module: nn.Module, index: int) -> Scores:
        """Return sums over a held-out minibatch: the loss, and what ``evaluate`` returns."""
        assert self._held_out is not None
        batch = self._held_out.load(index)
        frames = self._count_frames(batch)
        batch = to_device(batch, device_of(module))
        means = {"loss": float(self.loss(module, batch).detach())} | self._further_scores(module, batch)
        return {name: mean * frames for name, mean in means.items()} | {"frames": float(frames)}

    def about(self) -> dict[str, Any]:
        """Return what is trained, for a run's settings; the digest changes with the model or the data."""
        module = self.make_module()
        parts = [*module.state_dict().values(), *_tensors(self._minibatches.load(0))]
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return {
            "name": type(module).__name__,
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "minibatches": self.minibatches_per_epoch,
            "batch": self.nominal_frames,
            "digest": digest.hexdigest()[:16],
        }

    def _number(self, epoch: int, index: int) -> int:
        return epoch * self.minibatches_per_epoch + index

    def _count_frames(self, batch: Any) -> int:
        if self._count is None:
            first = next(_tensors(batch), None)
            if first is None:
                raise SettingsError(
                    f"frames: a minibatch of type {type(batch).__name__} has no tensor to count by; give frames=, "
                    "a function of a minibatch"
                )
            return len(first) if first.dim() else 1
        counted: Any = self._count(batch)
        if not isinstance(counted, int | float | Tensor) or not 0 < float(counted) < math.inf:
            raise SettingsError(f"frames: must return a number above 0, not {counted!r}")
        return int(counted)

    def _further_scores(self, module: nn.Module, batch: Any) -> Scores:
        if self._evaluate is None:
            return {}
        said = self._evaluate(module, batch)
        if not isinstance(said, Mapping) or any(name in RESERVED for name in said):
            raise SettingsError(
                f"evaluate: must return scores by names other than {', '.join(RESERVED)}, not {_shorten(said)}"
            )
        try:
            return {str(name): float(value) for name, value in said.items()}
        except (TypeError, ValueError, RuntimeError):
            raise SettingsError(f"evaluate: each score must be one number, not {_shorten(said)}") from None

    def _check(self, first: Any) -> tuple[str, ...]:
        """Try the model on a minibatch, so that a mistake is told at once; return the scores' names."""
        model, other = self.make_module(), self.make_module()
        shared = {id(parameter) for parameter in model.parameters()} & {
            id(parameter) for parameter in other.parameters()
        }
        if other is model or shared:
            raise SettingsError(
                "make_model: returns the same model twice, and every learner needs its own; make it inside the "
                "function, or give the model itself, which is copied"
            )
        with RandomStates(self.seed, MODEL):
            if not self.loss(model, first).requires_grad:
                raise SettingsError("loss: does not depend on parameters that are trained; it has no gradient")
            if self._held_out is None:
                return ()
            other.eval()
            with torch.no_grad():
                return tuple(name for name in self.score(other, 0) if name != "frames")


def _held_out(loader: Any) -> NumberedMinibatches:
    """Return held-out minibatches; those of an iterable are read once, and kept."""
    made = number_minibatches(keep(loader, "held_out"), "held_out", seed=0)
    if made.samples(0) is not None or isinstance(loader, Sequence):
        return made
    return number_minibatches([made.load(number) for number in range(made.per_epoch)], "held_out", seed=0)


def _check_callables(make_model: Any, loss: Any, evaluate: Any) -> None:
    for name, given in (("make_model", make_model), ("loss", loss), ("evaluate", evaluate)):
        if given is not None and not callable(given):
            raise SettingsError(f"{name}: must be a function, not {_shorten(given)}")
    if make_model is None or loss is None:
        raise SettingsError("simulate: give make_model, loader and loss, or a Task")
    if isinstance(loss, nn.Module) and any(parameter.requires_grad for parameter in loss.parameters()):
        raise SettingsError("loss: has parameters, which no optimizer would train; make them part of the model")


def _take_model_and_batch(function: Callable[..., Any]) -> OfBatch:
    """Return a function of the model and a minibatch: the given one, or one of the model's outputs and the targets."""
    if _takes_model(function):
        return function

    def call(model: nn.Module, batch: Any) -> Any:
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise SettingsError(
                f"loss: a minibatch of type {type(batch).__name__} is no pair of inputs and targets; write a function "
                "def loss(model, batch)"
            )
        *inputs, targets = batch
        return function(_forward(model, inputs[0] if len(inputs) == 1 else inputs), targets)

    return call


def _takes_model(function: Callable[..., Any]) -> bool:
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # of a function without a signature, written in C
        return False
    return first is not None and first.name in TAKES_MODEL


def _forward(model: nn.Module, inputs: Any) -> Any:
    """Call the model; several inputs are its arguments, a dict's by their names."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a minibatch, in the order in which they are in it."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for each in batch.values():
            yield from _tensors(each)
    elif isinstance(batch, tuple | list):
        for each in batch:
            yield from _tensors(each)
    elif hasattr(batch, "__dict__"):
        yield from _tensors(vars(batch))


def _shorten(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
