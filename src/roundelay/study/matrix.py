"""Expand a study into cells: every run with its name and all settings, before any is computed."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundelay import config
from roundelay.errors import SettingsError
from roundelay.experiment.settings import BuildExperiment, build_by_rule, build_experiment
from roundelay.included_files import merge
from roundelay.runtimes.cluster import Cluster
from roundelay.study.definition import Part, Study, Table
from roundelay.study.regimes import Fitted, fit_period, nodes_for, scaled, scaling
from roundelay.tasks import TASKS

SPANS = 300  # of each learner: enough for a timeline, as a study has many runs
HERE = "this machine"


@dataclass
class PlannedCell:
    """One run of a study."""

    strategy: str
    learners: int
    model: str
    cluster: str
    on: str
    seed: int
    settings: Table
    minibatches: int
    frames: int
    rate: float | None = None
    """``None`` until it is chosen by the trials of the same ``base``."""
    trial: bool = False
    fitted: Fitted = field(default_factory=Fitted)
    power: float = 0.0
    """The power of the number of learners by which the rate of one learner is multiplied."""

    @property
    def base(self) -> str:
        """The common name of all seeds and trials."""
        words = [self.strategy, str(self.learners), self.model, self.cluster if self.on == "simulator" else self.on]
        return "-".join(word.replace(" ", "-").replace("/", "-") for word in words if word)

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.base}-trial-{self.rate:g}" if self.trial else f"{self.base}-seed-{self.seed}"

    def at(self, rate: float) -> PlannedCell:
        """Return the cell with its learning rate set."""
        settings = copy.deepcopy(self.settings)
        settings.setdefault("optimizer", {"name": "SGD"})["lr"] = rate
        return dataclasses.replace(self, rate=rate, settings=settings)

    def digest(self) -> str:
        """Return a digest of the settings, without the path of the data."""
        settings = self.settings | {"task": {k: v for k, v in self.settings["task"].items() if k != "data"}}
        return hashlib.sha256(json.dumps([self.on, settings], sort_keys=True).encode()).hexdigest()[:16]


@dataclass
class Matrix:
    """All cells of a study; runs wait for the trials of the same `PlannedCell.base`."""

    trials: list[PlannedCell]
    cells: list[PlannedCell]
    baseline: str
    """The label of the baseline's strategy."""

    @property
    def frames(self) -> int:
        """The budget of each run, trials excepted."""
        return self.cells[0].frames


def expand(study: Study, build: BuildExperiment = build_experiment) -> Matrix:
    """Make every cell, and check its settings and that all budgets are equal."""
    maker, cells = _Maker(study, build), dict[str, PlannedCell]()
    for cell in _cells(study, maker):  # parts may overlap, and the baseline may be one of the strategies
        if cells.setdefault(cell.name, cell).digest() != cell.digest():
            raise SettingsError(
                f"two different runs have the name {cell.name}: give one of the strategies another label"
            )
    _check_frames(list(cells.values()))
    firsts = {cell.base: cell for cell in reversed(cells.values())}
    trials = [maker.trial(cell, rate) for cell in reversed(firsts.values()) for rate in study.tuning.rates]
    return Matrix(trials, list(cells.values()), _baseline(study, study.strategies).get("label", _label(study.baseline)))


def _label(name: str) -> str:
    """Return how a strategy is called: one of ``file.py:Name`` by its own name."""
    return name.rpartition(":")[2]


def describe(cell: PlannedCell) -> dict[str, Any]:
    """Return the description of a cell for ``cell.json`` and ``study.json``."""
    names = ("name", "strategy", "learners", "model", "cluster", "on", "seed", "rate", "trial", "frames")
    return {name: getattr(cell, name) for name in names} | {
        "clock": "virtual" if cell.on == "simulator" else "wall",
        "regime": cell.fitted.outside,
        "period": cell.fitted.period,
        "usual_period": cell.fitted.usual,
    }


def _cells(study: Study, maker: _Maker) -> Iterator[PlannedCell]:
    for part in study.all_parts():
        entries = [{"name": each} if isinstance(each, str) else each for each in part.strategies or []]
        for entry in entries:
            for learners in part.learners or []:
                yield from _of_group(part, maker, entry, learners)
        yield from _of_group(part, maker, _baseline(study, entries), 1)


def _baseline(study: Study, entries: Sequence[str | Table]) -> Table:
    tables = (entry for entry in entries if isinstance(entry, dict))
    return next((entry for entry in tables if entry["name"] == study.baseline), {"name": study.baseline})


def _of_group(part: Part, maker: _Maker, entry: Table, learners: int) -> Iterator[PlannedCell]:
    for model in part.models or [""]:
        for cluster in (part.clusters or [""]) if part.on == "simulator" else [HERE]:
            for seed in part.seeds or []:
                yield maker.cell(entry, learners, model, cluster, on=str(part.on), seed=seed)


class _Maker:
    """Makes the cells of a study, and caches the length of an epoch."""

    def __init__(self, study: Study, build: BuildExperiment) -> None:
        self.study, self._build = study, build
        self._epochs: dict[str, tuple[int, int]] = {}

    def cell(self, entry: Table, learners: int, model: str, cluster: str, *, on: str, seed: int) -> PlannedCell:
        """Make one cell; its rate is that of the experiment, scaled, unless trials choose it."""
        study, entry = self.study, dict(entry)
        label, power = entry.pop("label", _label(entry["name"])), entry.pop("scale", None)
        assert isinstance(study.experiment, dict)
        table = merge(study.experiment, study.models.get(model, {}))
        table |= {"learners": learners, "seed": seed, "strategy": entry}
        _seed_model(table, seed)
        table["cluster"] = _cluster(table, study, cluster, learners)
        table.setdefault("record", {}).setdefault("max_spans", SPANS)
        common = table.get("batch", {}).get("total") is not None
        if common and (every := table.get("budget", {}).get("evaluate_every")) is not None:
            table["budget"] = table["budget"] | {"evaluate_every": every * learners}  # after as many frames
        _fit_nodes(entry, table["cluster"], learners)
        measured, frames = self._measure(table, common=common)
        minibatches = _whole_rounds(measured, learners)
        frames = round(frames * minibatches / measured)
        _set_minibatches(table, minibatches)
        by_rule = table.get("rate", {}).get("rule") == "auto"  # written in the study: a study says its own rates else
        fitted = Fitted() if by_rule else fit_period(
            entry, minibatches=minibatches, learners=learners, wanted=study.blocks
        )  # fmt: skip
        if power is None:
            power = 0.0 if by_rule else scaling(entry["name"], common_batch=common)
        made = PlannedCell(
            label, learners, model, cluster, on, seed, table, minibatches, frames, fitted=fitted, power=power
        )  # fmt: skip
        tuned = made.at(scaled(_rate(table), learners, power))
        build = functools.partial(build_by_rule, build=self._build) if by_rule else self._build
        tuned.settings = build(tuned.settings, made.base).plain()
        return dataclasses.replace(tuned, rate=None) if study.tuning.rates else tuned

    def trial(self, cell: PlannedCell, rate: float) -> PlannedCell:
        """Make the trial of a cell; ``rate`` is for one learner."""
        tuning, settings = self.study.tuning, copy.deepcopy(cell.settings)
        minibatches = _whole_rounds(tuning.budget_fraction * cell.minibatches, cell.learners)
        _set_minibatches(settings, minibatches)
        settings["seed"] = tuning.seed
        _seed_model(settings, tuning.seed)
        frames = round(cell.frames * minibatches / cell.minibatches)
        trial = dataclasses.replace(
            cell, settings=settings, seed=tuning.seed, trial=True, minibatches=minibatches, frames=frames
        )
        return trial.at(scaled(rate, cell.learners, cell.power))

    def _measure(self, table: Table, *, common: bool) -> tuple[int, int]:
        """Return the minibatches and the frames of a run."""
        if common and table.get("budget", {}).get("minibatches") is not None:
            raise SettingsError(
                "budget.minibatches with batch.total gives each number of learners another number of frames; "
                "use budget.epochs"
            )
        plain: Table = {name: table[name] for name in ("task", "batch", "budget") if name in table}
        plain["learners"] = table["learners"] if common else 1
        key = json.dumps(plain, sort_keys=True)
        if key not in self._epochs:
            experiment = self._build(plain, "experiment")
            task = experiment.make_task()
            minibatches = experiment.make_budget(task).total
            self._epochs[key] = minibatches, minibatches * task.nominal_frames
        return self._epochs[key]


def _whole_rounds(minibatches: float, learners: int) -> int:
    """Round to a multiple of the learners: a last step with fewer minibatches would still have the full rate."""
    return learners * max(1, round(minibatches / learners))


def _set_minibatches(table: Table, minibatches: int) -> None:
    budget = {name: value for name, value in table.get("budget", {}).items() if name != "epochs"}
    table["budget"] = budget | {"minibatches": minibatches}


def _rate(table: Table) -> float:
    rate = table.get("optimizer", {}).get("lr", 0.1)
    if not isinstance(rate, int | float):
        raise SettingsError(f"optimizer.lr must be a number, not {rate!r}")
    return float(rate)


def _seed_model(table: Table, seed: int) -> None:
    """Set the seed of the model's initial weights, if the task has one."""
    task = table.get("task", {})
    if "model_seed" in getattr(TASKS.look_up(task.get("name")), "__dataclass_fields__", {}):
        table["task"] = task | {"model_seed": seed}


def _cluster(table: Table, study: Study, name: str, learners: int) -> Table:
    """Return the cluster for this number of learners; one learner has its own node, without stragglers and faults."""
    given = study.clusters.get(name)
    cluster = dict(given) if isinstance(given, dict) else dict(table.get("cluster", {}))
    if learners == 1:
        cluster = {key: value for key, value in cluster.items() if key not in ("stragglers", "faults")}
        cluster |= {"nodes": 1, "learners_per_node": 1}
    return cluster


def _fit_nodes(entry: Table, cluster: Table, learners: int) -> None:
    """Take the nodes of a hierarchy from the cluster, if it has nodes of several learners."""
    if entry["name"] != "hierarchical" or "learners_per_node" in entry:
        return
    sizes = config.build(Cluster, cluster, "cluster").node_sizes(learners)
    entry["learners_per_node"] = sizes if len(sizes) > 1 and max(sizes) > 1 else nodes_for(learners)


def _check_frames(cells: list[PlannedCell]) -> None:
    least, most = min(cell.frames for cell in cells), max(cell.frames for cell in cells)
    if most > 1.02 * least:
        raise SettingsError(
            f"every run must train the same frames, not {least} to {most} (whole rounds of all learners); "
            "use a longer budget"
        )
