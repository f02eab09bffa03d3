"""The state of one rank in a checkpoint, and how learner, strategy and generators are copied to it and back."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundelay.errors import CheckpointError
from roundelay.learner import Learner
from roundelay.strategy import Strategy

Tensors = dict[str, Tensor]
Values = dict[str, Any]


@dataclass
class RankState:
    """The state of one rank at a synchronization point; each owner of state adds its own part to it."""

    position: int
    """Minibatches trained by all."""
    rank: int = 0
    size: int = 1
    """Number of ranks, servers included."""
    attempt: int = 0
    """How often the run was resumed before: parts of different attempts do not make a checkpoint."""
    tensors: Tensors = field(default_factory=dict)
    state: Values = field(default_factory=dict)
    """Everything else, as JSON."""

    def freeze(self) -> RankState:
        """Replace all by copies, which training does not change."""
        self.tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self.tensors.items()}
        self.state = json.loads(json.dumps(self.state))
        return self


# -- the learner ------------------------------------------------------------------------------------------------------


def capture_learner(learner: Learner, into: RankState) -> None:
    """Add weights, constants, optimizer, metrics and all that is registered with the learner."""
    tensors: Tensors = {"weights": learner.weights}
    tensors |= {f"constant.{k}": constant for k, constant in enumerate(learner.constants)}
    tensors |= {
        f"keeper.{name}.{key}": x for name, owner in learner.stateful.items() for key, x in owner.state_dict().items()
    }
    into.tensors |= tensors
    into.state |= {
        "optimizer": _capture_optimizer(learner, into.tensors),
        "shapes": learner.shapes,
        "figures": learner.metrics,
        "moved": learner.descent_sum,
        "cut": learner.rollback_lr_factor,
    }


def restore_weights(learner: Learner, parts: list[RankState], *, rates: bool = True) -> None:
    """Restore the mean of the weights and optimizer states of several ranks, and the constants of the first.

    Without ``rates`` the optimizer keeps its own learning rate, which may depend on the number of learners.
    """
    first, *others = parts
    for other in others:
        for name, tensor in first.tensors.items():
            if name == "weights" or (name.startswith("optimizer.") and tensor.is_floating_point()):
                tensor.add_(other.tensors.get(name, tensor))
    for name, tensor in first.tensors.items():
        if name == "weights" or (name.startswith("optimizer.") and tensor.is_floating_point()):
            tensor.div_(len(parts))
    learner.weights.copy_(first.tensors["weights"])
    for k, constant in enumerate(learner.constants):
        constant.data.copy_(first.tensors[f"constant.{k}"])
    _restore_optimizer(learner, first, rates=rates)


def restore_metrics(learner: Learner, saved: RankState) -> None:
    """Restore the metrics that no step has written yet, and the debug sum."""
    learner.metrics = [(name, value) for name, value in saved.state["figures"]]
    learner.descent_sum = saved.state["moved"]


def restore_stateful(learner: Learner, saved: RankState) -> None:
    """Restore the state of all that is registered with the learner."""
    for name, owner in learner.stateful.items():
        prefix = f"keeper.{name}."
        owner.load_state_dict(
            {key.removeprefix(prefix): x for key, x in saved.tensors.items() if key.startswith(prefix)}
        )


# -- the strategy -----------------------------------------------------------------------------------------------------


def capture_strategy(strategy: Strategy, into: RankState) -> None:
    """Add all state that the strategy names."""
    _capture_strategy(strategy, "strategy", into.tensors, into.state.setdefault("strategy", {}))


def _capture_strategy(strategy: Strategy, path: str, tensors: Tensors, values: Values) -> None:
    for name in strategy.state:
        value = getattr(strategy, name, None)
        if isinstance(value, Strategy):
            _capture_strategy(value, f"{path}.{name}", tensors, values.setdefault(name, {}))
        elif isinstance(value, Tensor):
            tensors[f"{path}.{name}"] = value
        elif hasattr(strategy, name):
            values[name] = _plain(value, f"{type(strategy).__name__}.{name}")


def restore_strategy(strategy: Strategy, saved: RankState, names: tuple[str, ...] | None = None) -> None:
    """Restore a strategy's state, or only these ``names`` of it, after its `setup`."""
    _restore_strategy(strategy, "strategy", saved.tensors, saved.state["strategy"], names)


def _restore_strategy(
    strategy: Strategy, path: str, tensors: Tensors, values: Values, names: tuple[str, ...] | None
) -> None:
    for name in strategy.state if names is None else names:
        value = getattr(strategy, name, None)
        if isinstance(value, Strategy):
            _restore_strategy(value, f"{path}.{name}", tensors, values[name], None)
        elif f"{path}.{name}" in tensors:
            saved = tensors[f"{path}.{name}"]
            setattr(strategy, name, saved.to(value.device) if isinstance(value, Tensor) else saved)
        elif name in values:
            setattr(strategy, name, values[name])


# -- the optimizer ----------------------------------------------------------------------------------------------------


def _capture_optimizer(learner: Learner, tensors: Tensors) -> Values | None:
    """Copy the optimizer's state, parameter by parameter in the order of its groups, and the groups' settings."""
    if learner.optimizer is None:
        return None
    values: list[Values] = []
    groups: list[Values] = []
    for number, group in enumerate(learner.optimizer.param_groups):
        groups.append({})
        for key, value in group.items():
            if isinstance(value, Tensor):
                tensors[f"group.{number}.{key}"] = value
            elif key != "params":
                groups[-1][key] = _plain(value, f"{type(learner.optimizer).__name__}: {key}")
        for parameter in group["params"]:
            plain: Values = {}
            for key, value in learner.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{len(values)}.{key}"] = value
                else:
                    plain[key] = _plain(value, f"{type(learner.optimizer).__name__}: {key}")
            values.append(plain)
    return {"name": type(learner.optimizer).__name__, "values": values, "groups": groups}


def _restore_optimizer(learner: Learner, part: RankState, *, rates: bool) -> None:
    saved = part.state["optimizer"]
    if learner.optimizer is None or saved is None:
        return
    kind = type(learner.optimizer).__name__
    if saved["name"] != kind:
        raise CheckpointError(f"the checkpoint has the state of {saved['name']}, and the experiment uses {kind}")
    learner.optimizer.state.clear()
    number = 0
    for index, group in enumerate(learner.optimizer.param_groups):
        for key, value in saved["groups"][index].items():
            if rates or key not in ("lr", "initial_lr"):
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
        for parameter in group["params"]:
            prefix = f"optimizer.{number}."
            found: Values = dict(saved["values"][number])
            for name, tensor in part.tensors.items():
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = tensor if tensor.ndim == 0 else tensor.to(parameter.device)
            if found:
                learner.optimizer.state[parameter] = found
            number += 1


# -- plain values and generators --------------------------------------------------------------------------------------


def _plain(value: Any, what: str) -> Any:
    """Return ``value`` if JSON keeps it as it is."""
    try:
        if json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value):
            return value
    except (TypeError, ValueError):
        pass
    raise CheckpointError(
        f"{what} cannot be saved: {type(value).__name__}; use a tensor, a number or a list of numbers"
    )


def capture_random(into: RankState) -> None:
    """Add the state of the process's generators; each minibatch seeds torch's again, a task may use the others."""
    tensors = into.tensors
    tensors["random.torch"] = torch.get_rng_state()
    version, numbers, gauss = random.getstate()
    tensors["random.python"] = torch.tensor(numbers, dtype=torch.int64)
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors["random.numpy"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
    into.state["random"] = {"python": [version, gauss], "numpy": [name, int(position), int(has_gauss), float(cached)]}


def restore_random(part: RankState) -> None:
    """Restore the generators of the process."""
    saved, tensors = part.state["random"], part.tensors
    torch.set_rng_state(tensors["random.torch"])
    random.setstate((saved["python"][0], tuple(tensors["random.python"].tolist()), saved["python"][1]))
    name, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((name, tensors["random.numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
