"""What a checkpoint holds of a learner, copied out of its training and put back into another."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from roundelay.errors import CheckpointError
from roundelay.learner import Learner
from roundelay.strategy import Strategy
from roundelay.training.checkpoint_files import RankState
from roundelay.training.event_order import RecordedOrder

if TYPE_CHECKING:
    from roundelay.training.loop import Training

__all__ = ["put_back", "put_back_keepers", "put_back_strategy", "put_back_weights", "take"]

Tensors = dict[str, Tensor]
Values = dict[str, Any]


def take(training: Training, position: int) -> RankState:
    """Copy all state of a learner, at a meeting point."""
    learner = training.learner
    tensors: Tensors = {"weights": learner.weights}
    tensors |= {f"constant.{k}": constant for k, constant in enumerate(learner.constants)}
    tensors |= {
        f"keeper.{name}.{key}": x for name, keeper in learner.stateful.items() for key, x in keeper.state_dict().items()
    }
    state: Values = {"optimizer": _take_optimizer(learner, tensors), "strategy": {}}
    _take_strategy(training.acting, "strategy", tensors, state["strategy"])
    state |= {
        "done": training.stretch == len(training.stretches),
        "unsafe": training.ledger.trained,
        "warmup": training.acting is training.warming,
        "strategy_name": type(training.strategy).__name__,
        "shapes": learner.shapes,
        "figures": learner.metrics,
        "moved": learner.descent_sum,
        "cut": learner.rollback_lr_factor,
        "start": training.conserved,
        "scores": training.scores,
        "loss": training.loss,
        "schedule": _schedule_state(training),
        "runtime": training.runtime.capture(),
    }
    if isinstance(training.order, RecordedOrder):
        state["order"] = " ".join(training.order.tokens)
    _take_random(tensors, state)
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    frozen = json.loads(json.dumps(state))  # a copy: training changes the lists in it
    return RankState(position, training.world.rank, training.world.size, tensors=copies, state=frozen)


def put_back_weights(learner: Learner, snapshots: list[RankState], *, rates: bool = True) -> None:
    """Take the mean of the weights and of the optimizer states of several ranks, and the first one's constants.

    Without ``rates`` the optimizer keeps its own learning rate, which may go by the number of learners.
    """
    first, *others = snapshots
    for other in others:
        for name, tensor in first.tensors.items():
            if name == "weights" or (name.startswith("optimizer.") and tensor.is_floating_point()):
                tensor.add_(other.tensors.get(name, tensor))
    for name, tensor in first.tensors.items():
        if name == "weights" or (name.startswith("optimizer.") and tensor.is_floating_point()):
            tensor.div_(len(snapshots))
    learner.weights.copy_(first.tensors["weights"])
    for k, constant in enumerate(learner.constants):
        constant.data.copy_(first.tensors[f"constant.{k}"])
    _put_back_optimizer(learner, first, rates=rates)


def put_back(training: Training, snapshot: RankState) -> None:
    """Put everything back but weights and strategy, which come first: numbers, generators, the clock, the record."""
    learner, state = training.learner, snapshot.state
    put_back_keepers(learner, snapshot)
    learner.metrics = [(name, value) for name, value in state["figures"]]
    learner.descent_sum, training.conserved = state["moved"], state["start"]
    training.scores, training.loss = state["scores"], state["loss"]
    if isinstance(training.order, RecordedOrder):
        training.order.tokens[:] = state.get("order", "").split()
    _put_back_random(snapshot)
    training.runtime.restore(state["runtime"])


def put_back_keepers(learner: Learner, snapshot: RankState) -> None:
    """Put back the state of all that is registered with the learner."""
    for name, keeper in learner.stateful.items():
        prefix = f"keeper.{name}."
        keeper.load_state_dict(
            {key.removeprefix(prefix): x for key, x in snapshot.tensors.items() if key.startswith(prefix)}
        )


# -- the strategy -----------------------------------------------------------------------------------------------------


def _take_strategy(strategy: Strategy, path: str, tensors: Tensors, values: Values) -> None:
    for name in strategy.state:
        value = getattr(strategy, name, None)
        if isinstance(value, Strategy):
            _take_strategy(value, f"{path}.{name}", tensors, values.setdefault(name, {}))
        elif isinstance(value, Tensor):
            tensors[f"{path}.{name}"] = value
        elif hasattr(strategy, name):
            values[name] = _plain(value, f"{type(strategy).__name__}.{name}")


def put_back_strategy(strategy: Strategy, snapshot: RankState, names: tuple[str, ...] | None = None) -> None:
    """Put back a strategy's state, or just these ``names`` of it, after its `setup`."""
    _put_back_strategy(strategy, "strategy", snapshot.tensors, snapshot.state["strategy"], names)


def _put_back_strategy(
    strategy: Strategy, path: str, tensors: Tensors, values: Values, names: tuple[str, ...] | None
) -> None:
    for name in strategy.state if names is None else names:
        value = getattr(strategy, name, None)
        if isinstance(value, Strategy):
            _put_back_strategy(value, f"{path}.{name}", tensors, values[name], None)
        elif f"{path}.{name}" in tensors:
            saved = tensors[f"{path}.{name}"]
            setattr(strategy, name, saved.to(value.device) if isinstance(value, Tensor) else saved)
        elif name in values:
            setattr(strategy, name, values[name])


# -- the optimizer ----------------------------------------------------------------------------------------------------


def _take_optimizer(learner: Learner, tensors: Tensors) -> Values | None:
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


def _put_back_optimizer(learner: Learner, snapshot: RankState, *, rates: bool) -> None:
    saved = snapshot.state["optimizer"]
    if learner.optimizer is None or saved is None:
        return
    kind = type(learner.optimizer).__name__
    if saved["name"] != kind:
        raise CheckpointError(f"the checkpoint has the state of {saved['name']}, and the experiment wants {kind}")
    learner.optimizer.state.clear()
    number = 0
    for index, group in enumerate(learner.optimizer.param_groups):
        for key, value in saved["groups"][index].items():
            if rates or key not in ("lr", "initial_lr"):
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
        for parameter in group["params"]:
            prefix = f"optimizer.{number}."
            found: Values = dict(saved["values"][number])
            for name, tensor in snapshot.tensors.items():
                if name.startswith(prefix):
                    found[name.removeprefix(prefix)] = tensor if tensor.ndim == 0 else tensor.to(parameter.device)
            if found:
                learner.optimizer.state[parameter] = found
            number += 1


# -- odds and ends ----------------------------------------------------------------------------------------------------


def _schedule_state(training: Training) -> Values:
    state = getattr(training.schedule, "state", None)
    return state() if state is not None else {}


def _plain(value: Any, what: str) -> Any:
    """Return ``value`` if JSON can hold it as it is."""
    try:
        if json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value):
            return value
    except (TypeError, ValueError):
        pass
    raise CheckpointError(
        f"{what} cannot be saved: {type(value).__name__}; a tensor, a number or a list of them would do"
    )


def _take_random(tensors: Tensors, state: Values) -> None:
    """Copy the generators that the process has; each minibatch seeds torch's anew, a task may use the others."""
    tensors["random.torch"] = torch.get_rng_state()
    version, numbers, gauss = random.getstate()
    tensors["random.python"] = torch.tensor(numbers, dtype=torch.int64)
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors["random.numpy"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
    state["random"] = {"python": [version, gauss], "numpy": [name, int(position), int(has_gauss), float(cached)]}


def _put_back_random(snapshot: RankState) -> None:
    saved, tensors = snapshot.state["random"], snapshot.tensors
    torch.set_rng_state(tensors["random.torch"])
    random.setstate((saved["python"][0], tuple(tensors["random.python"].tolist()), saved["python"][1]))
    name, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((name, tensors["random.numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
