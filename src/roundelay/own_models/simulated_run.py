"""Train a user's own model on a simulated cluster."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from roundelay import config
from roundelay.errors import SettingsError
from roundelay.experiment import run_training
from roundelay.experiment.backends import RunOptions
from roundelay.experiment.run_observer import Evaluated, RunObserver
from roundelay.experiment.run_training import Changes
from roundelay.experiment.settings import Experiment, build_experiment
from roundelay.optim.default_rules import changed_settings
from roundelay.own_models.described_cluster import Described, describe_cluster, measure_gradient
from roundelay.own_models.own_experiment import OptimizerOf, OwnExperiment, OwnParts, own_parts
from roundelay.own_models.program_replay import ended, place, program
from roundelay.planning.cluster_plan import ClusterPlan, plan
from roundelay.planning.frames_to_target import parse_target
from roundelay.planning.ranking import PAPERS
from roundelay.report.report_writer import write_report
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies import STRATEGIES
from roundelay.strategy import Strategy
from roundelay.task import Schedule, Scores, Task
from roundelay.tasks.loader_minibatches import RandomStates
from roundelay.tasks.model_task import ModelTask


@dataclass(frozen=True)
class SimulatedRun:
    """What came of a model on a simulated cluster."""

    model: nn.Module
    """The model with the consensus weights."""
    scores: Scores
    """Of the model, on held-out minibatches."""
    seconds: float
    """In virtual time."""
    evaluations: tuple[Evaluated, ...]
    losses: tuple[float, ...]
    """Of every minibatch that was trained, in the order in which learners finished them."""
    totals: dict[str, dict[str, float]]
    """By learner: seconds by what they were spent on, bytes sent, and so on."""
    cluster: Cluster = field(default_factory=Cluster)
    """The cluster, with the model's size and the frames of a minibatch: `roundelay.plan` takes it."""
    folder: Path | None = None
    """Where settings, record and model are, if ``out`` was given."""
    rule: str = ""
    """What the strategy's default rule has chosen, and why; empty if nothing."""

    @property
    def record(self) -> Path:
        """The record, one JSON object per line."""
        return self._folder("the record is in it") / "record.jsonl"

    def report(self, out: Path | str | None = None, *, target: str | None = None) -> Path:
        """Write ``report.html`` to ``out``, by default to the run's folder, and return its path."""
        folder = self._folder("a report is made of its record")
        return write_report(
            folder, Path(out) if out is not None else None, target=parse_target(target) if target is not None else None
        )

    def plan(
        self, *, learners: Sequence[int], target: str | None = None, strategies: Sequence[str] = PAPERS
    ) -> ClusterPlan:
        """Rank strategies for this model on this cluster by speed, or by the time to ``target`` (``loss=0.4``)."""
        record = self._folder("its record says how many frames a target takes") if target is not None else None
        return plan(self.cluster, learners=learners, strategies=strategies, record=record, target=target)

    def _folder(self, why: str) -> Path:
        if self.folder is None:
            raise SettingsError(f"simulate: give out=, a folder for the run; {why}")
        return self.folder


class _Collecting(RunObserver):
    """Remembers what happens, and passes it on."""

    def __init__(self, then: RunObserver) -> None:
        self.evaluations: list[Evaluated] = []
        self.losses: list[float] = []
        self._then = then
        self.started, self.noticed, self.began, self.ended = then.started, then.noticed, then.began, then.ended  # type: ignore[method-assign]  # all that is only passed on

    def stepped(self, minibatch: int, frames: int, loss: float) -> None:
        """Remember the loss."""
        self.losses.append(loss)
        self._then.stepped(minibatch, frames, loss)

    def evaluated(self, evaluation: Evaluated) -> None:
        """Remember the evaluation."""
        self.evaluations.append(evaluation)
        self._then.evaluated(evaluation)


StrategyLike = Strategy | str | Mapping[str, Any]


@overload
def simulate(
    model: Callable[[], nn.Module] | nn.Module,
    loader: Any,
    loss: Callable[..., Tensor],
    strategy: StrategyLike = ...,
    *,
    held_out: Any = ...,
    evaluate: Callable[..., Mapping[str, Any]] | None = ...,
    frames: Callable[[Any], int] | None = ...,
    learners: int = ...,
    cluster: Described = ...,
    gradient_seconds: float | Literal["measure"] | None = ...,
    epochs: float | None = ...,
    minibatches: int | None = ...,
    evaluate_every: int | None = ...,
    optimizer: OptimizerOf | Callable[..., torch.optim.Optimizer] | Mapping[str, Any] | None = ...,
    schedule: Schedule | Callable[[float], float] | Mapping[str, Any] | str | None = ...,
    seed: int = ...,
    out: Path | str | None = ...,
    settings: Mapping[str, Any] | None = ...,
    options: RunOptions | None = ...,
    observer: RunObserver | None = ...,
) -> SimulatedRun: ...


@overload
def simulate(
    model: Task,
    loader: StrategyLike = ...,
    *,
    strategy: StrategyLike = ...,
    learners: int = ...,
    cluster: Described = ...,
    gradient_seconds: float | Literal["measure"] | None = ...,
    epochs: float | None = ...,
    minibatches: int | None = ...,
    evaluate_every: int | None = ...,
    optimizer: OptimizerOf | Callable[..., torch.optim.Optimizer] | Mapping[str, Any] | None = ...,
    schedule: Schedule | Callable[[float], float] | Mapping[str, Any] | str | None = ...,
    seed: int = ...,
    out: Path | str | None = ...,
    settings: Mapping[str, Any] | None = ...,
    options: RunOptions | None = ...,
    observer: RunObserver | None = ...,
) -> SimulatedRun: ...


def simulate(
    model: Any,
    loader: Any = None,
    loss: Any = None,
    strategy: Any = None,
    *,
    held_out: Any = None,
    evaluate: Any = None,
    frames: Any = None,
    learners: int = 1,
    cluster: Described = None,
    gradient_seconds: float | Literal["measure"] | None = None,
    epochs: float | None = None,
    minibatches: int | None = None,
    evaluate_every: int | None = None,
    optimizer: Any = None,
    schedule: Any = None,
    seed: int = 0,
    out: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    observer: RunObserver | None = None,
) -> SimulatedRun:
    """Train a model by a strategy on ``learners`` simulated learners; the same call gives the same bits.

    ``simulate(make_model, loader, loss, strategy)`` trains any PyTorch model; see `ModelTask` for the first three, and
    for ``held_out``, ``evaluate`` and ``frames``.  ``simulate(task, strategy)`` trains any `Task`.  A strategy is an
    object, a name (``bmuf``, ``mine.py:Name``) or a table with a name and settings.

    The budget is ``epochs``, by default one, or ``minibatches`` of all learners together.  The optimizer, by default
    SGD at 0.1, is a class of torch.optim or a partial of it, a function of the model, or a table; a schedule a function
    of the frames trained that returns a factor of the rate, or a table.  ``cluster`` is a profile's name, a file, a
    table or a `Cluster`, on which a gradient takes ``gradient_seconds``; ``"measure"`` measures it here, and then the
    time is not the same in every call.  With ``out`` the run has a folder for `roundelay report`, `watch` and `replay`.
    ``settings`` (``{"keep.model": "best"}``) change any other setting of an experiment.
    """
    if isinstance(model, Task):
        task, strategy = model, strategy if loader is None else loader
        if any(each is not None for each in (loss, held_out, evaluate, frames)):
            raise SettingsError("simulate: a Task has its own loss and held-out minibatches; give make_model instead")
    else:
        task = ModelTask(
            model, loader, loss, held_out=held_out, evaluate=evaluate, frames=frames, minibatches=minibatches, seed=seed
        )
    with undisturbed(seed, threads=int((settings or {}).get("threads", 1))):
        if gradient_seconds == "measure":
            gradient_seconds = measure_gradient(task)
        parts, table = own_parts(task, optimizer, schedule, program())
        described = describe_cluster(cluster, learners, gradient_seconds)
        table |= {"budget": _budget(epochs, minibatches, evaluate_every), "seed": seed}
        table["cluster"] = config.plain(described)
        experiment = _configure(table, parts, strategy, learners, settings, options)
        folder, collecting = place(out), _Collecting(observer or RunObserver())
        made = run_training.run(
            experiment, folder, on="simulator", options=options or RunOptions(), observer=collecting
        )  # fmt: skip
    ended(folder, scores=made.scores, seconds=made.seconds)
    assert made.model is not None
    return SimulatedRun(
        made.model,
        made.scores,
        made.seconds,
        tuple(collecting.evaluations),
        tuple(collecting.losses),
        made.totals or {},
        for_planning(described, task),
        folder,
        made.rule,
    )


def for_planning(cluster: Cluster, task: Task) -> Cluster:
    """Return the cluster with the size of the task's model, unless it has one, and the frames of a minibatch."""
    size = cluster.model_bytes or vector_bytes(task.make_module())
    return dataclasses.replace(cluster, model_bytes=size, frames=task.nominal_frames)


def vector_bytes(module: nn.Module) -> float:
    """Return the size of what learners exchange: parameters that are trained, and floating buffers."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    width = 8 if any(parameter.dtype == torch.float64 for parameter in trained) else 4
    return float(width * sum(t.numel() for t in (*trained, *(b for b in module.buffers() if b.is_floating_point()))))


def _configure(
    table: dict[str, Any], parts: OwnParts, strategy: Any, learners: int, settings: Mapping[str, Any] | None,
    options: RunOptions | None,
) -> Experiment:  # fmt: skip
    """Return the experiment of these settings and parts; a strategy that is an object needs no name."""
    if isinstance(strategy, type):
        raise SettingsError(f"strategy: give an object, {strategy.__name__}(), or a name")
    if isinstance(strategy, Mapping):
        table["strategy"] = config.resolve(strategy, Path())
    elif isinstance(strategy, Strategy) and _is_ours(strategy):
        table["strategy"] = _as_table(strategy)
    elif strategy is not None and not isinstance(strategy, str | Strategy):
        raise SettingsError(f"strategy: must be a name, a table or a Strategy, not {strategy!r}")
    name = strategy if isinstance(strategy, str) else None
    own = strategy if isinstance(strategy, Strategy) and not _is_ours(strategy) else None

    def build(settings: dict[str, Any], where: str) -> Experiment:
        if own is None:
            return OwnExperiment.around(build_experiment(settings, where), parts)
        rest = {name: value for name, value in settings.items() if name != "strategy"}
        return OwnExperiment.around(build_experiment(rest, where), parts).replace(strategy=own)

    changes = Changes(strategy=name, learners=learners, settings=settings or {})
    return run_training.configure(table, changes, on="simulator", options=options, build=build)


def _is_ours(strategy: Strategy) -> bool:
    """Tell whether settings can name a strategy and those inside it without the user's program."""
    inside = (getattr(strategy, each.name) for each in dataclasses.fields(strategy))  # type: ignore[arg-type]  # strategies are dataclasses
    ours = type(strategy) in STRATEGIES.values()
    return ours and all(_is_ours(each) for each in inside if isinstance(each, Strategy))


def _as_table(strategy: Strategy) -> dict[str, Any]:
    """Return the name of a strategy and what its maker has set; the default rule may choose the rest."""
    plain, table = config.plain(strategy), dict[str, Any]()
    for key in changed_settings(strategy):
        value = getattr(strategy, key)
        if value is not None:
            table[key] = _as_table(value) if isinstance(value, Strategy) else plain[key]
    return {"name": plain["name"]} | table


def _budget(epochs: float | None, minibatches: int | None, evaluate_every: int | None) -> dict[str, Any]:
    for name, value in (("epochs", epochs), ("minibatches", minibatches), ("evaluate_every", evaluate_every)):
        if value is not None and not value > 0:
            raise SettingsError(f"{name} must be above 0, not {value}")
    if epochs is not None and minibatches is not None:
        raise SettingsError("epochs and minibatches are both given; use one of them")
    given = {"epochs": epochs, "minibatches": minibatches, "evaluate_every": evaluate_every}
    return {name: value for name, value in given.items() if value is not None} or {"epochs": 1.0}


@contextlib.contextmanager
def undisturbed(seed: int = 0, *, threads: int = 1) -> Iterator[None]:
    """Leave the caller's random generators and threads as they were; compute with ``threads``."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with RandomStates(seed):
            yield
    finally:
        torch.set_num_threads(before)
