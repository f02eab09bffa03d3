"""Compare strategies on a user's own model: the same study, folder and report as of `roundelay compare`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundelay import config
from roundelay.config import Table
from roundelay.errors import SettingsError, suggest
from roundelay.experiment.settings import Experiment, assign
from roundelay.own_models.described_cluster import describe_cluster
from roundelay.own_models.own_experiment import OwnExperiment, OwnParts, own_parts
from roundelay.own_models.program_replay import ended, place, program
from roundelay.own_models.simulated_run import undisturbed
from roundelay.report.report_writer import write_report
from roundelay.study.cell_worker import compute
from roundelay.study.definition import Study
from roundelay.study.matrix import PlannedCell
from roundelay.study.scheduler import Outcome, Scheduler, StepCounter, StudyComparison, Watcher
from roundelay.study.scheduler import compare as compare_settings
from roundelay.study.summary import summarise
from roundelay.task import Task


@dataclass(frozen=True)
class ModelComparison(StudyComparison):
    """The result of a study of a user's own model."""

    report: Path
    """The page about it."""


def compare(
    study: Study | Path | str | Mapping[str, Any],
    out: Path | str,
    *,
    task: Task | None = None,
    optimizer: Any = None,
    schedule: Any = None,
    data: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    retry: bool = False,
    watcher: Watcher | None = None,
) -> StudyComparison:
    """Compute every cell of a study in the folder ``out``, and return their summary; one that was stopped continues.

    ``study`` is a TOML file, or a table with the same keys.  With ``task``, usually a `ModelTask`, the study is about
    that: its experiment needs no task, ``optimizer`` and ``schedule`` are as of `simulate`, and cells are computed in
    this process, one after another.  The report is written too.  Without ``task`` the study's experiment says what is
    trained, and ``jobs`` cells are computed at a time.  ``settings`` change the study's experiment.
    """
    if task is None:
        if optimizer is not None or schedule is not None:
            raise SettingsError("compare: optimizer and schedule are for a task; a study's experiment has its own")
        made = study if not isinstance(study, Mapping) else _read(study, settings)
        return compare_settings(made, out, data=data, settings=settings, jobs=jobs, retry=retry, watcher=watcher)
    if jobs not in (None, 1) or data is not None:
        raise SettingsError("compare: the cells of a task are computed in this process; leave out jobs and data")
    return _compare_task(_read(study, settings), out, task, optimizer, schedule, retry=retry, watcher=watcher)


def _compare_task(
    study: Study, out: Path | str, task: Task, optimizer: Any, schedule: Any, *, retry: bool, watcher: Watcher | None
) -> ModelComparison:
    assert isinstance(study.experiment, dict)
    parts, table = own_parts(task, optimizer, schedule, program())
    study.experiment |= table
    if task.score_names and study.target.score not in task.score_names:
        raise SettingsError(f"target.score: unknown {suggest(study.target.score, task.score_names)}")
    if not task.held_out_minibatches:
        raise SettingsError("compare: the target needs an evaluation; give the task held_out, a loader")
    if any(part.on != "simulator" for part in study.all_parts()):
        raise SettingsError("compare: a task of this program runs in the simulator; use roundelay.join on processes")
    folder = place(out)
    assert folder is not None
    here = _Here(parts)
    with undisturbed():
        scheduler = Scheduler(study, folder, jobs=1, watcher=watcher, retry=retry, build=here.build, crew=here)
        scheduler.run()
    return ModelComparison(folder, summarise(folder), tuple(scheduler.computed), write_report(folder))


def _read(study: Study | Path | str | Mapping[str, Any], settings: Mapping[str, Any] | None) -> Study:
    """Return the study with its files read; clusters may be profiles too."""
    if isinstance(study, Path | str):
        return Study.read(Path(study), settings)
    if isinstance(study, Study):
        made = copy.deepcopy(study)
    else:
        table = config.resolve({"experiment": {}, "title": "own model"} | dict(study), Path())
        made = config.build(Study, _with_target(table), "study")
    if isinstance(made.experiment, str):
        made.experiment = config.read(Path(made.experiment))
    for key, value in (settings or {}).items():
        assign(made.experiment, key, value)
    made.clusters = {
        name: config.plain(describe_cluster(each, max(made.learners))) for name, each in made.clusters.items()
    }
    made.check("study")
    return made


def _with_target(table: Table) -> Table:
    """Let a target be written as ``loss=0.4``."""
    if not isinstance(table.get("target"), str):
        return table
    from roundelay.planning.frames_to_target import parse_target

    return table | {"target": dict(parse_target(table["target"]))}


@dataclass
class _NoSteps:
    def steps(self) -> int:
        """Return 0: nothing looks while a cell is computed."""
        return 0


class _Here:
    """Computes cells in this process, one at a time."""

    alone = False

    def __init__(self, parts: OwnParts) -> None:
        self._parts, self._job = parts, dict[str, Any]()
        self.busy: dict[int, tuple[PlannedCell, StepCounter]] = {}

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def idle(self) -> int | None:
        """Return the one slot, unless it has a cell."""
        return None if self.busy else 0

    def give(self, slot: int, cell: PlannedCell, job: dict[str, Any]) -> None:
        """Take a cell to compute."""
        self.busy[slot], self._job = (cell, _NoSteps()), job

    def answers(self, seconds: float) -> list[tuple[int, Outcome]]:
        """Compute the cell."""
        outcome = compute(self._job, self._read)
        self.busy.clear()
        if outcome["status"] == "done":
            ended(Path(self._job["run"]), scores=outcome["scores"], seconds=outcome["seconds"])
        return [(0, outcome)]

    def build(self, settings: Table, where: str) -> Experiment:
        """Make the experiment of a cell's settings, with the program's own parts."""
        return OwnExperiment.around(config.build(Experiment, settings, where), self._parts)

    def _read(self, path: Path) -> Experiment:
        return self.build(config.read(path), str(path))
