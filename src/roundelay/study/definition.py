"""The definition of a study, a TOML file: strategies, budget, target and tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from roundelay import config
from roundelay.config import Count, Positive, Seed, Settings
from roundelay.errors import SettingsError, suggest
from roundelay.experiment.settings import assign
from roundelay.included_files import Kind, find_file, read_extended
from roundelay.strategies import STRATEGIES
from roundelay.study.claims import PaperClaim

Table = dict[str, Any]
On = Literal["simulator", "processes"]


@dataclass(frozen=True)
class TargetSettings(Settings):
    """The score to reach on dev, fixed before any run."""

    value: float
    score: str = "error"
    """A score of the evaluations; lower is better."""


@dataclass(frozen=True)
class Tuning(Settings):
    """The trials of each strategy; the best is chosen by the target's score on dev."""

    rates: list[Positive] = field(default_factory=list)
    """Learning rates for one learner, scaled by `regimes.scaled` for more; none: the experiment's."""
    budget_fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Fraction of the budget that a trial trains."""
    seed: Seed = 0
    """Seed of all trials; not one of ``seeds``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.rates)) < len(self.rates):
            raise SettingsError(f"rates must differ, not {self.rates}")


@dataclass(frozen=True)
class Decoding:
    """How to decode with the trained models."""

    split: str = "test"
    language: str | None = None
    """A language model of the data; by default that of `roundelay decode`."""


@dataclass(frozen=True)
class Part(Settings):
    """A part of the matrix; fields that are None are as in the study."""

    on: On | None = None
    strategies: list[str | Table] | None = None
    learners: list[Count] | None = None
    models: list[str] | None = None
    clusters: list[str] | None = None
    seeds: list[Seed] | None = None


@dataclass
class Study(Settings):
    """The settings of `roundelay compare`."""

    experiment: str | Table
    """An experiment: a file, relative to the study's, or its settings."""
    strategies: list[str | Table]
    """Names, or tables of settings with a ``name``, a ``label`` and a ``scale`` (the power of N in the rate)."""
    target: TargetSettings
    title: str = ""
    learners: list[Count] = field(default_factory=lambda: [1])
    seeds: list[Seed] = field(default_factory=lambda: [1])
    on: On = "simulator"
    models: dict[str, Table] = field(default_factory=dict)
    """Settings that change the experiment's, by the name in the report."""
    clusters: dict[str, str | Table] = field(default_factory=dict)
    """Simulated clusters, files or tables, by name; none: the experiment's."""
    baseline: str = "synchronous"
    """The strategy whose one learner is the baseline of every speed-up."""
    blocks: Count = 20
    """Blocks per learner that a strategy with blocks must have in its budget."""
    tuning: Tuning = field(default_factory=Tuning)
    decode: Decoding | None = None
    parts: list[Part] = field(default_factory=list)
    claim: PaperClaim | None = None
    """What the study tries, and by what it is judged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("strategies", "learners", "seeds"):
            if not getattr(self, name):
                raise SettingsError(f"{name}: at least one is needed")
        if self.tuning.rates and self.tuning.seed in {
            *self.seeds,
            *(n for part in self.parts for n in part.seeds or []),
        }:
            raise SettingsError(f"tuning.seed {self.tuning.seed} is also in `seeds`; use another seed")

    @classmethod
    def read(cls, path: Path, settings: Mapping[str, Any] | None = None, data: Path | None = None) -> Study:
        """Read a study and the files that it names; ``settings``, by key, change its experiment."""
        table = read_extended(path, "study")
        if "task" in table and "strategies" not in table:
            raise SettingsError(f"{path}: an experiment, not a study; use roundelay train, or name it in a study")
        study = config.build(cls, table, str(path))
        if isinstance(study.experiment, str):
            study.experiment = read_extended(_beside("experiment", path, study.experiment))
        for name, cluster in study.clusters.items():
            if isinstance(cluster, str):
                study.clusters[name] = read_extended(_beside("cluster", path, cluster), "cluster")
        for key, value in (settings or {}).items():
            assign(study.experiment, key, value)
        if data is not None:
            study.experiment.setdefault("task", {})["data"] = str(data.absolute())
        study.title = study.title or path.stem
        study.check(str(path))
        return study

    def all_parts(self) -> list[Part]:
        """Return the parts of the matrix, complete; a study without parts is one part."""
        whole = Part(self.on, self.strategies, self.learners, list(self.models), list(self.clusters), self.seeds)
        return [_complete(part, whole) for part in self.parts or [Part()]]

    def check(self, where: str) -> None:
        """Raise `SettingsError` if a name is unknown, before any run."""
        lists = [("strategies", self.strategies)]
        lists += [(f"parts[{k}].strategies", part.strategies or []) for k, part in enumerate(self.parts)]
        for place, entries in lists:
            for k, entry in enumerate(entries):
                name = entry if isinstance(entry, str) else entry.get("name", "")
                _find_strategy(str(name), f"{where}: {place}[{k}]")
        _find_strategy(self.baseline, f"{where}: baseline")
        for k, part in enumerate(self.parts):
            for kind, known in (("models", self.models), ("clusters", self.clusters)):
                for name in getattr(part, kind) or []:
                    if name not in known:
                        raise SettingsError(f"{where}: parts[{k}].{kind}: unknown {suggest(name, known)}")


def _beside(kind: Kind, study: Path, given: str) -> Path:
    """Return a file that a study names: relative to the study's, or included."""
    beside = study.parent / given
    return beside if beside.is_file() or given.endswith(".toml") else find_file(kind, given)


def _find_strategy(name: str, where: str) -> None:
    try:
        STRATEGIES.find(name, "strategy")
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


def _complete(part: Part, whole: Part) -> Part:
    said = {name: value for name, value in vars(part).items() if value is not None}
    return dataclasses.replace(whole, **said)
