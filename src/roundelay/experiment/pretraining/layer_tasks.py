"""The tasks of pre-training, made of any task whose model is a chain of Linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.devices import device_of, to_device
from roundelay.errors import SettingsError
from roundelay.experiment.pretraining.rbm import RBM, Visible
from roundelay.experiment.pretraining.rbm_momentum import GuardedMomentum
from roundelay.learner import Learner
from roundelay.task import Scores, Task, seed_minibatch

MINIBATCHES_FOR_MOMENTS = 50
"""That mean and deviation of the inputs, or the mean activations of a layer, are taken from."""


def chain_of(model: nn.Module) -> list[str]:
    """Return the names of the Linear layers that a network consists of, the output layer last."""
    names = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            names.append(name)
        elif next(module.parameters(recurse=False), None) is not None and not isinstance(module, nn.BatchNorm1d):
            kind = type(module).__name__
            raise SettingsError(f"pretrain: the model must be a chain of Linear layers, as 'dnn' is; {name} is {kind}")
    if len(names) < 2:
        raise SettingsError("pretrain: the model has no hidden layer")
    return names


class _Reached(Exception):
    """The layer whose input was wanted has been reached."""


@contextmanager
def _listening(model: nn.Module, layer: str, *, stop: bool) -> Iterator[list[Tensor]]:
    """Collect the inputs of a layer of ``model``, which is in evaluation mode meanwhile."""
    heard: list[Tensor] = []

    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        heard.append(inputs[0].reshape(-1, inputs[0].shape[-1]))
        if stop:
            raise _Reached

    handle, training = model.get_submodule(layer).register_forward_pre_hook(hook), model.training
    model.eval()
    try:
        with torch.no_grad():
            yield heard
    except _Reached:
        pass
    finally:
        handle.remove()
        model.train(training)


def inputs_of(task: Task, model: nn.Module, layer: str, index: int, epoch: int = 0) -> Tensor:
    """Return what a layer is given for a minibatch, (N, V)."""
    return _inputs(model, layer, lambda: task.loss(model, task.load(epoch, index)), stop=True)


def _inputs(model: nn.Module, layer: str, run: Callable[[], Any], *, stop: bool) -> Tensor:
    with _listening(model, layer, stop=stop) as heard:
        run()
    return torch.cat(heard) if len(heard) > 1 else heard[0]


class RBMTask(Task):
    """Train the RBM that is to become ``layer`` of ``model`` on what that layer is given."""

    def __init__(
        self, task: Task, model: nn.Module, layer: str, *, first: bool, seed: int, deviation: float = 0.1
    ) -> None:
        self.task, self.model, self.layer, self.first = task, model, layer, first
        self.minibatches_per_epoch, self.nominal_frames, self.held_out_minibatches = (
            task.minibatches_per_epoch,
            task.nominal_frames,
            task.held_out_minibatches,
        )
        self.moments: tuple[Tensor, Tensor] | None = None
        self._seed, self._deviation = seed, deviation
        self._start = None if first else self._mean_and_deviation()[0]

    def normalise(self) -> None:
        """Let the RBM see inputs of zero mean and unit variance."""
        self.moments = self._mean_and_deviation()

    def _mean_and_deviation(self) -> tuple[Tensor, Tensor]:
        count = min(MINIBATCHES_FOR_MOMENTS, self.minibatches_per_epoch)
        every = self.minibatches_per_epoch // count
        rows = torch.cat([inputs_of(self.task, self.model, self.layer, every * k) for k in range(count)]).double()
        return rows.mean(0).float(), rows.std(0, correction=0).clamp(min=1e-4).float()

    def make_module(self) -> RBM:
        """Make the RBM, the same each time."""
        layer = self.model.get_submodule(self.layer)
        assert isinstance(layer, nn.Linear)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            kind: Visible = "gaussian" if self.first else "bernoulli"
            rbm = RBM(layer.in_features, layer.out_features, kind, deviation=self._deviation)
        if self._start is not None:
            rbm.start_visible(self._start)
        return rbm

    def frames(self, epoch: int, index: int) -> int:
        """Return the number of frames in a minibatch."""
        return self.task.frames(epoch, index)

    def load(self, epoch: int, index: int) -> Tensor:
        """Return the layer's input, normalised where that is wanted."""
        return self._normalised(inputs_of(self.task, self.model, self.layer, index, epoch))

    def _normalised(self, rows: Tensor) -> Tensor:
        return rows if self.moments is None else (rows - self.moments[0]) / self.moments[1]

    def gradient(self, learner: Learner, batch: Tensor) -> float:
        """Hand over minus the statistics of contrastive divergence; the loss is the error of the reconstruction."""
        rbm = learner.module
        assert isinstance(rbm, RBM)
        statistics, error = rbm.contrast(batch)
        for name, parameter in rbm.named_parameters():
            parameter.grad = statistics[name].neg_()
        if isinstance(learner.optimizer, GuardedMomentum):
            learner.optimizer.note = learner.log
        return error

    def score(self, module: nn.Module, index: int) -> Scores:
        """Return the squared error of the reconstruction from hidden probabilities."""
        assert isinstance(module, RBM)
        rows = _inputs(self.model, self.layer, lambda: self.task.score(self.model, index), stop=False)
        rows = to_device(self._normalised(rows), device_of(module))
        errors = (rows - module.visible(module.hidden(rows))).square().mean(1)
        return {"loss": float(errors.sum()), "frames": float(len(rows))}

    def describe(self, epoch: int, index: int) -> str:
        """Say what is in a minibatch."""
        return self.task.describe(epoch, index)


class Shallow(Task):
    """The same task for a network of which only the first ``depth`` hidden layers are there yet."""

    def __init__(self, task: Task, chain: Sequence[str], depth: int, done: dict[str, Tensor], *, seed: int) -> None:
        self.task, self._chain, self._depth, self._done, self._seed = task, chain, depth, done, seed
        self.minibatches_per_epoch, self.nominal_frames, self.held_out_minibatches = (
            task.minibatches_per_epoch,
            task.nominal_frames,
            task.held_out_minibatches,
        )

    def make_module(self) -> nn.Module:
        """Make the network: layers that are trained already, one that is not, and an output layer of its own."""
        model = self.task.make_module()
        model.load_state_dict(self._done, strict=False)
        output, last = (model.get_submodule(self._chain[place]) for place in (-1, self._depth - 1))
        assert isinstance(output, nn.Linear)
        assert isinstance(last, nn.Linear)
        for name in self._above(model):
            model.set_submodule(name, nn.Identity())
        if output.in_features != last.out_features:
            with torch.random.fork_rng(devices=[]):
                seed_minibatch(self._seed, 0, 0)
                model.set_submodule(self._chain[-1], nn.Linear(last.out_features, output.out_features))
        return model

    def _above(self, model: nn.Module) -> list[str]:
        """Return everything between the last layer's nonlinearity and the output layer."""
        leaves = [name for name, module in model.named_modules() if not any(module.children())]
        return leaves[leaves.index(self._chain[self._depth]) : leaves.index(self._chain[-1])]

    def frames(self, epoch: int, index: int) -> int:
        """Return the number of frames in a minibatch."""
        return self.task.frames(epoch, index)

    def load(self, epoch: int, index: int) -> Any:
        """Return a minibatch."""
        return self.task.load(epoch, index)

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss per frame."""
        return self.task.loss(module, batch)

    def score(self, module: nn.Module, index: int) -> Scores:
        """Return sums over a held-out minibatch."""
        return self.task.score(module, index)

    def describe(self, epoch: int, index: int) -> str:
        """Say what is in a minibatch."""
        return self.task.describe(epoch, index)
