"""Pre-training: a deep network's hidden layers one after another, each by a run of the one training loop.

`kind = "rbm"` trains a stack of restricted Boltzmann machines on what the layers below make of the data;
`kind = "layerwise"` trains the network itself while it grows, with a new output layer each time.  Every stage
runs under the experiment's own strategy on its learners, and leaves ``pretrain/<stage>`` behind in the run's folder;
what the main run starts with is ``pretrain/model.safetensors``.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from roundelay.errors import CheckpointError, SettingsError
from roundelay.experiment.pretraining.layer_tasks import RBMTask, Shallow, chain_of, inputs_of
from roundelay.experiment.pretraining.rbm import RBM
from roundelay.experiment.pretraining.rbm_momentum import GuardedMomentum
from roundelay.experiment.run_observer import ObservedRecord, RunObserver
from roundelay.files import write_bytes, write_json
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import simulate
from roundelay.training.budget import Budget
from roundelay.training.loop import Job, Training, start_with

if TYPE_CHECKING:
    from roundelay.experiment.settings import Experiment
    from roundelay.runtime import Runtime

log = logging.getLogger(__name__)
Tensors = dict[str, Tensor]


class Pretraining:
    """The stages of an experiment's pre-training, and what they have come to so far."""

    def __init__(self, experiment: Experiment, done: Tensors | None = None) -> None:
        assert experiment.pretrain is not None
        self.experiment, self.settings = experiment, experiment.pretrain
        self.task = experiment.make_task()
        self.model = self.task.make_module()
        self.chain = chain_of(self.model)
        able = len(self.chain) - 1 - (self.settings.kind == "layerwise")
        self.stages = able if self.settings.layers is None else self.settings.layers
        if not 1 <= self.stages <= able:
            what = f"{len(self.chain) - 1} hidden layers can have {able} of them pre-trained by {self.settings.kind}"
            raise SettingsError(f"pretrain: a model with {what}, not {self.stages}")
        if self.settings.kind == "rbm":
            self._see_sigmoids()
        self.done: Tensors = {}
        self._moments: tuple[Tensor, Tensor] | None = None
        self._take(done or {})

    @classmethod
    def before(cls, stage: int, experiment: Experiment, folder: Path) -> Pretraining:
        """Return pre-training with all stages before ``stage`` done, as a run's folder has them."""
        return cls(experiment, load_file(folder / "pretrain" / "model.safetensors") if stage else None)

    def _see_sigmoids(self) -> None:
        """Complain unless each pre-trained layer's output reaches the next through a sigmoid and nothing else."""
        for layer, above in zip(self.chain[: self.stages], self.chain[1:], strict=False):
            given, expected = (inputs_of(self.task, self.model, name, 0) for name in (layer, above))
            with torch.no_grad():
                made = torch.sigmoid(self.model.get_submodule(layer)(given))
            if made.shape != expected.shape or not torch.allclose(made, expected, atol=1e-5):
                raise SettingsError(
                    f"pretrain: an RBM becomes a layer with a sigmoid behind it, which {layer} has not; "
                    "give the model sigmoids and no batch norm, or use kind = 'layerwise'"
                )

    def _take(self, tensors: Tensors) -> None:
        self.done |= tensors
        start_with(self.model, self.done)

    # -- one stage ----------------------------------------------------------------------------------------------

    def job(self, stage: int) -> Job:
        """Make what a learner trains by in a stage, from 0."""
        return self._rbm_job(stage) if self.settings.kind == "rbm" else self._shallow_job(stage)

    def budget(self, stage: int) -> Budget:
        """Count the minibatches of a stage."""
        per_epoch = self.task.minibatches_per_epoch
        shards = self.experiment.learners if self.experiment.budget.shards == "private" else None
        return Budget(per_epoch, max(1, round(self.settings.epochs_of(stage) * per_epoch)), shards=shards)

    def _rbm_job(self, stage: int) -> Job:
        settings, layer = self.settings, self.chain[stage]
        seed = self.experiment.seed + stage
        task = RBMTask(self.task, self.model, layer, first=stage == 0, seed=seed, deviation=settings.deviation)
        if stage == 0 and settings.normalise:
            task.normalise()
        self._moments = task.moments
        rate = settings.rate_of(stage)
        assert rate is not None

        def optimizer(module: nn.Module) -> torch.optim.Optimizer:
            assert isinstance(module, RBM)
            return GuardedMomentum(module, rate, l2=settings.l2)

        return Job(
            task,
            self.experiment.strategy,
            self.budget(stage),
            optimizer,
            schedule=lambda: settings.momentum,
            seed=seed,
        )

    def _shallow_job(self, stage: int) -> Job:
        changes: dict[str, Any] = {}
        if (rate := self.settings.rate_of(stage)) is not None:
            changes["optimizer"] = self.experiment.optimizer | {"lr": rate}
        experiment = self.experiment.replace(**changes)
        return Job(
            Shallow(self.task, self.chain, stage + 1, self.done, seed=experiment.seed + stage),
            experiment.strategy,
            self.budget(stage),
            experiment.optimizer_of(self.task),
            clip=experiment.clip,
            seed=experiment.seed + stage,
        )

    def simulate(self, stage: int, folder: Path | None, *, observer: RunObserver | None = None) -> dict[str, Any]:
        """Run a stage on the experiment's simulated cluster, and absorb it; return what it came to."""
        job, experiment = self.job(stage), self.experiment
        place = None if folder is None else folder / "pretrain" / str(stage + 1)
        if place is not None:
            place.mkdir(parents=True, exist_ok=True)
        path, spans = place and place / "record.jsonl", experiment.record.max_spans
        outcome = simulate(
            job.training,
            experiment.cluster or Cluster(),
            learners=experiment.learners,
            servers=job.strategy.servers,
            seed=experiment.seed,
            record=ObservedRecord(path, observer or RunObserver(), clock="virtual", spans=spans),
        )
        first = next(training for training in outcome.trainings if not training.learner.is_server)
        first.learner.load(outcome.consensus)
        self.absorb(stage, first.learner.module)
        about = _about(self, stage, first, outcome.seconds, "virtual")
        if folder is not None:
            self.save(folder / "pretrain", about)
        return about

    def train(self, stage: int, runtime: Runtime, folder: Path) -> dict[str, Any]:
        """Run a stage as one rank of several, and absorb it; the first learner saves what has been done so far."""
        training = self.job(stage).training(runtime)
        training.learner.load(runtime.run(training.run()))
        self.absorb(stage, training.learner.module)
        about = _about(self, stage, training, runtime.now(), "wall")
        if training.learner.index == 0 and not training.learner.is_server:
            self.save(folder / "pretrain", about)
        return about

    def absorb(self, stage: int, module: nn.Module) -> None:
        """Take over what a stage has trained: its module with the consensus weights."""
        if isinstance(module, RBM):
            weight, bias = module.affine(*(self._moments or (None, None)))
            self._take({f"{self.chain[stage]}.weight": weight, f"{self.chain[stage]}.bias": bias})
        else:
            output = self.chain[-1]
            state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            self._take({name: x for name, x in state.items() if not name.startswith(f"{output}.")})

    def save(self, folder: Path, about: dict[str, Any]) -> None:
        """Write what is done so far, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "model.safetensors", save({name: x.contiguous() for name, x in self.done.items()}))
        write_json(folder / "model.json", about, sort_keys=False)


def stages_done(folder: Path) -> tuple[int, int]:
    """Return how many stages of a run's pre-training are done, and of how many; none of 1 where none has begun."""
    path = folder / "pretrain" / "model.json"
    if not path.exists():
        return 0, 1
    about = json.loads(path.read_text(encoding="utf-8"))
    return about["stage"], about["stages"]


def is_complete(folder: Path) -> bool:
    """Tell whether all stages of a run's pre-training are done."""
    done, of = stages_done(folder)
    return done == of


def resume(experiment: Experiment, folder: Path | None) -> tuple[Pretraining, range]:
    """Return pre-training as far as it has come, and the stages that are left."""
    done = 0 if folder is None else stages_done(folder)[0]
    weights = _read(folder / "pretrain" / "model.safetensors") if folder is not None and done else None
    pretraining = Pretraining(experiment, weights)
    return pretraining, range(done, pretraining.stages)


def check(experiment: Experiment) -> None:
    """Complain now of pre-training that cannot be, or of weights that cannot be taken."""
    if experiment.pretrain is None:
        return
    if experiment.pretrain.weights is None:
        Pretraining(experiment)
    else:
        start_with(experiment.make_task().make_module(), _read(Path(experiment.pretrain.weights)))


def is_wanted(experiment: Experiment, folder: Path | None) -> bool:
    """Tell whether a run is still to be pre-trained."""
    wanted = experiment.pretrain is not None and experiment.pretrain.weights is None
    return wanted and (folder is None or not is_complete(folder))


def pretrained(experiment: Experiment, folder: Path | None) -> Tensors | None:
    """Return the weights that a run starts with, where its experiment asks for pre-training."""
    if experiment.pretrain is None:
        return None
    if experiment.pretrain.weights is not None:
        return _read(Path(experiment.pretrain.weights))
    if folder is None or not is_complete(folder):
        where = folder or "a run without a folder"
        raise CheckpointError(
            f"{where}: is not pre-trained yet, which 'roundelay train' does; or give pretrain.weights, the "
            "pretrain/model.safetensors of a run that was"
        )
    return _read(folder / "pretrain" / "model.safetensors")


def _read(path: Path) -> Tensors:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"pretrain.weights: {path}: {error}") from error


def _about(pretraining: Pretraining, stage: int, training: Training, seconds: float, clock: str) -> dict[str, Any]:
    """Say what a stage came to."""
    guarded = getattr(training.learner.optimizer, "param_groups", [{}])[0].get("guarded", 0)
    about = {
        "kind": pretraining.settings.kind,
        "stage": stage + 1,
        "stages": pretraining.stages,
        "layer": pretraining.chain[stage],
        "scores": training.scores,
        "seconds": seconds,
        "clock": clock,
        "guarded": guarded,
    }
    log.debug("pretrain: %s %d of %d: %s", about["kind"], stage + 1, pretraining.stages, training.scores)
    return about
