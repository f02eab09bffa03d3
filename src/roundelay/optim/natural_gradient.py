"""Natural-gradient SGD: precondition the gradient of any Linear or Conv layer of any model, as Kaldi does.

A user calls only `precondition`.  Legend: G groups of a convolution (1 elsewhere), N rows (frames, or positions of a
convolution), I inputs of a layer with the 1 of its bias, O outputs.
"""

from __future__ import annotations

import fnmatch
import functools
import logging
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional, grad
from torch.utils.hooks import RemovableHandle

from roundelay.config import Count, NonNegative, Settings
from roundelay.errors import SettingsError, suggest
from roundelay.optim.online_fisher import FisherSettings, OnlineFisher

if TYPE_CHECKING:
    from roundelay.learner import Learner

log = logging.getLogger(__name__)
Affine = nn.Linear | nn.Conv1d | nn.Conv2d


@dataclass(frozen=True)
class NaturalGradientSettings(Settings):
    """The settings of Kaldi's recipes, with their values."""

    layers: list[str] = field(default_factory=lambda: ["*"])
    """Names of layers as in ``named_modules``, with ``*`` and ``?``; others keep their plain gradient."""
    rank_in: Count = 20
    rank_out: Count = 80
    update_period: Count = 4
    num_samples_history: Annotated[float, Meta(gt=0, le=1e6)] = 2000.0
    alpha: NonNegative = 4.0
    max_change_per_sample: NonNegative = 0.075
    """Bound on the change of a layer by one row, at the optimizer's learning rate; 0: none."""

    def fisher(self, rank: int) -> FisherSettings:
        """Return the settings of one of the two matrices of a layer."""
        return FisherSettings(rank, self.update_period, self.num_samples_history, self.alpha)


def precondition(
    module: nn.Module, optimizer: torch.optim.Optimizer, settings: NaturalGradientSettings | None = None
) -> NaturalGradient:
    """Precondition the gradients of ``module``'s Linear and Conv layers from now on, before any strategy sees them.

    Call it before `roundelay.join`, or in a plain PyTorch loop: ``.grad`` is then the natural gradient.  The learning
    rate for ``max_change_per_sample`` is read from ``optimizer``.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> natural = precondition(model, sgd, NaturalGradientSettings(rank_in=2, rank_out=2))
    >>> model(torch.randn(16, 4)).square().mean().backward()
    >>> sorted(natural.layers)
    ['0', '2']
    """
    return NaturalGradient(module, optimizer, settings or NaturalGradientSettings())


class NaturalGradient:
    """The preconditioners of a module's layers: state that is private to one learner.

    A `Learner` finds it in its ``module``: checkpoints save it, averaging does not change it.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, settings: NaturalGradientSettings) -> None:
        self.settings, self._optimizer = settings, optimizer
        self._factor: Callable[[], float] = lambda: 1.0
        chosen = _choose_layers(module, settings.layers)
        self.layers = {name: _Layer(layer, settings, self._rate) for name, layer in chosen.items()}
        stateful = module.__dict__.setdefault("roundelay_stateful", {})
        if "natural_gradient" in stateful:
            raise SettingsError("precondition: this module's gradients are preconditioned already")
        stateful["natural_gradient"] = self

    def attach(self, learner: Learner) -> None:
        """Become part of ``learner``: its schedule's factor is part of the learning rate."""
        reference = weakref.ref(learner)  # the learner refers to us
        self._factor = lambda: 1.0 if (learner := reference()) is None else learner.lr_factor

    def _rate(self, parameter: Tensor) -> float:
        for group in self._optimizer.param_groups:
            if any(parameter is each for each in group["params"]):
                return float(group["lr"]) * self._factor()
        return 0.0  # the optimizer does not train this layer

    def state_dict(self) -> dict[str, Tensor]:
        """Return all factors as tensors."""
        return {
            f"{name}/{side}/{key}": value
            for name, layer in self.layers.items()
            for side, fisher in layer.sides.items()
            for key, value in fisher.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name, layer in self.layers.items():
            for side, fisher in layer.sides.items():
                prefix = f"{name}/{side}/"
                own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
                fisher.load_state_dict(own)


def _choose_layers(module: nn.Module, patterns: Iterable[str]) -> dict[str, Affine]:
    """Return the layers that can be preconditioned and match a pattern."""
    able = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, Affine) and layer.weight.requires_grad
    }
    if not able:
        raise SettingsError(
            f"natural_gradient: {type(module).__name__} has no trained Linear, Conv1d or Conv2d layer; an LSTM can be "
            "built of Linear layers (roundelay.models.linear_lstm)"
        )
    for pattern in patterns:
        if not fnmatch.filter(able, pattern):
            raise SettingsError(f"natural_gradient.layers: unknown {suggest(pattern, able)}")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase):
            _log_skipped_layer(name)
    return {name: layer for name, layer in able.items() if any(fnmatch.fnmatch(name, each) for each in patterns)}


@functools.cache
def _log_skipped_layer(name: str) -> None:
    """Log the name of a layer that is skipped; once per process, since every learner has this layer."""
    log.info(
        "natural_gradient: %s keeps its plain gradient, since there are no layers inside it; use linear = true in the "
        "model's settings to build it of Linear layers (roundelay.models.linear_lstm)",
        name,
    )


@dataclass
class _BackwardPass:
    """What one backward pass leaves at a layer until the pass is over."""

    uses: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """The input and the output derivative of each use."""
    gradients: dict[str, Tensor] | None = None
    """Those of weight and bias that no hook has fetched yet; none before the first hook is called."""


class _Layer:
    """One layer; its forward pass is replaced by one that records inputs and output derivatives.

    A layer may be used many times in a minibatch (once per frame in an LSTM).  Autograd calls the hook of a parameter
    after the backward passes of all uses: the hook makes one gradient of all of them.
    """

    def __init__(self, module: Affine, settings: NaturalGradientSettings, rate: Callable[[Tensor], float]) -> None:
        self.module, self._rate, self._max_change = module, rate, settings.max_change_per_sample
        self.sides = {
            "in": OnlineFisher(settings.fisher(settings.rank_in)),
            "out": OnlineFisher(settings.fisher(settings.rank_out)),
        }
        self.passes: dict[int, _BackwardPass] = {}
        self._handles: dict[str, RemovableHandle] = {}
        self._zero = module.weight.detach().new_zeros(())
        setattr(module, "forward", self.forward)  # noqa: B010 (mypy has no other way); the class's is still there

    @property
    def zero(self) -> Tensor:
        """A zero where the layer is, which the module may have been moved to."""
        if self._zero.device != self.module.weight.device:
            self._zero = self._zero.to(self.module.weight.device)
        return self._zero

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, and record its input if a gradient is needed."""
        module = self.module
        if not (torch.is_grad_enabled() and module.weight.requires_grad):
            plain: Tensor = getattr(type(module), "forward")(module, x)  # noqa: B009 (as above)
            return plain
        if torch._C._current_graph_task_id() == -1:
            self.passes.clear()  # of a backward pass that failed
        self._add_hook("weight", module.weight)
        if module.bias is not None:
            self._add_hook("bias", module.bias)
        if not isinstance(module, nn.Linear):
            x = _pad(module, x)
        y: Tensor = _RecordedLayer.apply(x, module.weight, module.bias, self)  # type: ignore[no-untyped-call]  # torch's
        return y

    def _add_hook(self, kind: str, parameter: Tensor) -> None:
        """Put our hook on the parameter if it is not there: a copied module has new parameters, without hooks."""
        handle, hooks = self._handles.get(kind), parameter._backward_hooks or {}
        if parameter.requires_grad and (handle is None or handle.id not in hooks):
            self._handles[kind] = parameter.register_hook(lambda incoming: self._finish(kind, incoming))

    def _finish(self, kind: str, incoming: Tensor) -> Tensor | None:
        """Return the parameter's gradient, if this backward pass has been through the layer."""
        current = self.passes.get(torch._C._current_graph_task_id())
        if current is None:
            return None
        if current.gradients is None:
            current.gradients = self._gradients(current.uses)
        mine = current.gradients.pop(kind, None)
        if mine is None or incoming.data_ptr() == self.zero.data_ptr():
            return mine
        return incoming + mine  # the parameter is used elsewhere too

    def record(self, x: Tensor, dy: Tensor) -> bool:
        """Keep one use of the layer until its backward pass is over; return whether it is the first in that pass."""
        task = torch._C._current_graph_task_id()
        first = task not in self.passes
        if first:
            self.passes[task] = _BackwardPass()
            # The hook of a parameter is not called by autograd.grad(loss, [x]), which wants no gradient of it.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(functools.partial(self.passes.pop, task, None))
        self.passes[task].uses.append((x, dy))
        return first

    @torch.no_grad()
    def _gradients(self, uses: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Return the gradients of weight and bias, made of preconditioned inputs and output derivatives."""
        biased = self.module.bias is not None
        rows = [_rows(self.module, *use) for use in reversed(uses)]
        x, dy = (torch.cat(parts, dim=1) if len(parts) > 1 else parts[0] for parts in zip(*rows, strict=True))
        count = x.shape[1]
        if biased:
            x = functional.pad(x, (0, 1), value=1.0)
        # Kaldi's derivatives are of a sum over frames, and epsilon fits those.  Ours are of a mean: N times smaller.
        x_hat, scale_in = self.sides["in"].precondition(x.flatten(0, 1))
        dy_hat, scale_out = self.sides["out"].precondition(dy.flatten(0, 1) * count)
        scale = scale_in * scale_out / count
        scale *= self._limit(x_hat, dy_hat, scale)
        x_hat, dy_hat = x_hat.view_as(x), (dy_hat * scale).view_as(dy)
        weight = dy_hat.transpose(1, 2) @ (x_hat[..., :-1] if biased else x_hat)  # (G, O, I)
        made = {"weight": weight.view_as(self.module.weight)}
        if biased:
            made["bias"] = (dy_hat.transpose(1, 2) @ x_hat[..., -1:]).flatten()
        return made

    def _limit(self, x: Tensor, dy: Tensor, scale: float) -> float:
        """Return the factor that shortens the step so that no row moves the layer too far."""
        reach = self._rate(self.module.weight) * scale
        if not (self._max_change and reach):
            return 1.0
        far = reach * float((torch.linalg.vector_norm(x, dim=1) * torch.linalg.vector_norm(dy, dim=1)).sum())
        return min(1.0, self._max_change * len(x) / far) if far > 0.0 else 1.0


class _RecordedLayer(torch.autograd.Function):
    """A layer's output; its backward pass gives zeros to the parameters, and the hook makes their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: _Layer) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        if isinstance(layer.module, nn.Linear):
            return functional.linear(x, weight, bias)
        return _convolve(layer.module, x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        dx = _input_gradient(layer.module, x, weight, dy) if ctx.needs_input_grad[0] else None
        if not layer.record(x, dy):
            return dx, None, None, None
        # Autograd calls the hook only if it has a gradient; an expanded zero takes no memory.
        bias = layer.zero.expand(layer.module.bias.shape) if ctx.needs_input_grad[2] else None
        return dx, layer.zero.expand(weight.shape), bias, None


def _pad(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Pad the input here, instead of in the convolution."""
    if module.padding == "valid" or (module.padding_mode == "zeros" and not any(_sides(module))):
        return x
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return functional.pad(x, _sides(module), mode=mode)


def _sides(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Return the padding of each side, the last dimension first."""
    sides = []
    for axis in reversed(range(len(module.kernel_size))):
        if isinstance(module.padding, str):
            total = module.dilation[axis] * (module.kernel_size[axis] - 1) if module.padding == "same" else 0
            sides += [total // 2, total - total // 2]
        else:
            sides += [module.padding[axis]] * 2
    return sides


def _convolve(module: nn.Conv1d | nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    call = functional.conv1d if isinstance(module, nn.Conv1d) else functional.conv2d
    return call(x, weight, bias, module.stride, 0, module.dilation, module.groups)


def _input_gradient(module: Affine, x: Tensor, weight: Tensor, dy: Tensor) -> Tensor:
    if isinstance(module, nn.Linear):
        return dy @ weight
    call: Any = grad.conv1d_input if isinstance(module, nn.Conv1d) else grad.conv2d_input
    made: Tensor = call(x.shape, weight, dy, module.stride, 0, module.dilation, module.groups)
    return made


def _rows(module: Affine, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs (G, N, I) and output derivatives (G, N, O) of one use of the layer."""
    if isinstance(module, nn.Linear):
        return x.reshape(1, -1, x.shape[-1]), dy.reshape(1, -1, dy.shape[-1])
    if isinstance(module, nn.Conv1d):
        x, dy = x.unsqueeze(-2), dy.unsqueeze(-2)
    one = (1,) if isinstance(module, nn.Conv1d) else ()
    patches = functional.unfold(
        x.view(-1, *x.shape[-3:]), (*one, *module.kernel_size), (*one, *module.dilation), 0, (*one, *module.stride)
    )  # (B, channels * kernel, positions)
    groups = module.groups
    patches = patches.unflatten(1, (groups, -1)).permute(1, 0, 3, 2)  # (G, B, positions, I)
    derivatives = dy.reshape(len(patches[0]), groups, module.out_channels // groups, -1).permute(1, 0, 3, 2)
    return patches.flatten(1, 2), derivatives.flatten(1, 2)
