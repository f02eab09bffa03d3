"""Compute a study's cells on several processes, each cell once, also if the study is stopped and continued."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from roundelay.errors import SettingsError
from roundelay.experiment.settings import BuildExperiment, build_experiment
from roundelay.runs.history import read_details
from roundelay.runs.reader import Tail
from roundelay.study.cell_worker import conclude
from roundelay.study.definition import Study
from roundelay.study.matrix import Matrix, PlannedCell, expand
from roundelay.study.schema import Summary
from roundelay.study.statistics import choose_rate, settled
from roundelay.study.study_folder import StudyFolder
from roundelay.study.summary import summarise

LOOK_SECONDS = 0.25  # between two looks at how far the cells are
STEP = b'"event":"step"'
Outcome = dict[str, Any]


class Watcher(Protocol):
    """Called while a study is computed; ``slot`` is the index of a process."""

    def planned(self, total: int, done: int) -> None:
        """Take the number of cells, and how many were computed before."""

    def started(self, slot: int, cell: PlannedCell) -> None:
        """Take the cell that this process computes now."""

    def progressed(self, slot: int, share: float) -> None:
        """Take the share of its cell that is trained."""

    def finished(self, slot: int, outcome: Outcome) -> None:
        """Take the outcome of its cell."""


class _Silent:
    def planned(self, total: int, done: int) -> None: ...
    def started(self, slot: int, cell: PlannedCell) -> None: ...
    def progressed(self, slot: int, share: float) -> None: ...
    def finished(self, slot: int, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class StudyComparison:
    """The result of a study."""

    folder: Path
    summary: Summary
    """The answer, and a row for each strategy and number of learners."""
    computed: tuple[str, ...]
    """The cells that this call computed."""


def compare(
    study: Study | Path | str,
    out: Path | str,
    *,
    data: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    retry: bool = False,
    watcher: Watcher | None = None,
) -> StudyComparison:
    """Compute every cell of a study, usually a TOML file, in the folder ``out``, and return their summary.

    ``settings`` (``{"budget.epochs": 2}``) change the study's experiment.  A study that was stopped continues.
    ``jobs`` cells are computed at a time, by default one per core.
    """
    if not isinstance(study, Study):
        study = Study.read(Path(study), settings, data)
    scheduler = Scheduler(study, Path(out), jobs=jobs, watcher=watcher, retry=retry)
    scheduler.run()
    return StudyComparison(Path(out), summarise(Path(out)), tuple(scheduler.computed))


class Scheduler:
    """Computes the cells that are not computed yet."""

    def __init__(
        self, study: Study, out: Path, *, jobs: int | None = None, watcher: Watcher | None = None, retry: bool = False,
        build: BuildExperiment = build_experiment, crew: Crew | None = None,
    ) -> None:  # fmt: skip
        jobs = jobs if jobs is not None else len(os.sched_getaffinity(0))
        if jobs < 1:
            raise SettingsError(f"--jobs must be at least 1, not {jobs}")
        self.study, self.folder, self.jobs, self.retry = study, StudyFolder(out), jobs, retry
        self.watcher = watcher or _Silent()
        self.matrix: Matrix = expand(study, build)
        self._crew = crew  # by default processes
        self.outcomes: dict[str, Outcome] = {}
        self.computed: list[str] = []
        self._waiting: list[PlannedCell] = []  # for their trials
        self._ready: list[PlannedCell] = []
        self._trials: dict[str, list[PlannedCell]] = {}
        self._rates: dict[str, float] = {}
        for trial in self.matrix.trials:
            self._trials.setdefault(trial.base, []).append(trial)

    def run(self) -> None:
        """Compute until all cells of the matrix are done."""
        with self.folder.locked() as lock:
            self.folder.create(self.study, self.matrix)
            self._sort_out()
            self.watcher.planned(len(self.matrix.trials) + len(self.matrix.cells), len(self.outcomes))
            with self._crew or _Processes(self.jobs, lock, self.folder.path / "log.txt") as crew:
                while self._ready or crew.busy or self._waiting:
                    self._start(crew)
                    for slot, (cell, counter) in crew.busy.items():
                        self.watcher.progressed(slot, counter.steps() / cell.minibatches)
                    for slot, outcome in crew.answers(LOOK_SECONDS):
                        self._finish(slot, outcome)

    def _sort_out(self) -> None:
        """Divide the cells into those that are computed and those that are not."""
        known = [cell for cell in [*self.matrix.trials, *self.matrix.cells] if cell.rate is not None]
        changed = [cell.name for cell in known if self.folder.changed(cell)]
        if changed:
            raise SettingsError(
                f"{self.folder.path}: {changed[0]} was computed with other settings, and {len(changed) - 1} more; "
                "give --out a new folder, or remove its run"
            )
        for trial in self.matrix.trials:
            self._take(trial)
        self._waiting = list(self.matrix.cells)
        self._release()

    def _take(self, cell: PlannedCell) -> None:
        """Keep the outcome of a cell that is computed; otherwise mark it as ready."""
        outcome = self.folder.outcome(cell)
        if outcome is None or (self.retry and outcome["status"] != "done"):
            self._ready.append(cell)
        else:
            self.outcomes[cell.name] = outcome

    def _release(self) -> None:
        """Mark as ready the cells whose trials are all done, at the best rate of these."""
        waiting, self._waiting = self._waiting, []
        for cell in waiting:
            trials = self._trials.get(cell.base, [])
            if not all(trial.name in self.outcomes for trial in trials):
                self._waiting.append(cell)
            elif cell.rate is not None:
                self._take(cell)
            else:
                if cell.base not in self._rates:
                    self._rates[cell.base] = self._choose(cell.base, trials)
                self._take(cell.at(self._rates[cell.base]))
        # By seed, so that a study that is stopped has as many seeds of each strategy.
        self._ready.sort(key=lambda cell: (cell.on == "processes", not cell.trial, cell.seed))

    def _choose(self, base: str, trials: Sequence[PlannedCell]) -> float:
        """Return the rate of a seed that was computed before, so that all seeds have one; else the best trial's."""
        seeds = [cell for cell in self.matrix.cells if cell.base == base]
        rates = {trial.rate or 0.0: trial.name for trial in trials}
        for rate in rates if not self.retry else []:
            if any(self.folder.outcome(cell.at(rate)) is not None for cell in seeds):
                return rate
        return choose_rate({rate: self._score(name) for rate, name in rates.items()})

    def _score(self, trial: str) -> float | None:
        if self.outcomes[trial]["status"] != "done":
            return None
        return settled(read_details(self.folder.run(trial)).points, self.study.target.score)

    def _start(self, crew: Crew) -> None:
        """Start a cell on each idle process.  A cell on processes is measured by the wall clock: it runs alone."""
        while self._ready and (slot := crew.idle()) is not None:
            cell = self._ready[0]
            alone = cell.on == "processes"
            if crew.busy and (alone or crew.alone):
                return
            self._ready.pop(0)
            shutil.rmtree(self.folder.run(cell.name), ignore_errors=True)  # files of a killed study
            crew.give(slot, cell, self.folder.job(cell, self.study))
            self.watcher.started(slot, cell)

    def _finish(self, slot: int, outcome: Outcome) -> None:
        self.outcomes[outcome["name"]] = outcome
        self.computed.append(outcome["name"])
        self.watcher.finished(slot, outcome)
        if outcome["trial"]:
            self._release()


class StepCounter(Protocol):
    """Counts the steps of a cell that is being computed."""

    def steps(self) -> int:
        """Return the number of steps so far."""


class Crew(Protocol):
    """Computes cells, in slots."""

    busy: dict[int, tuple[PlannedCell, StepCounter]]

    def __enter__(self) -> Crew: ...
    def __exit__(self, *_: object) -> None: ...

    @property
    def alone(self) -> bool:
        """Whether a cell is being computed that must run alone."""

    def idle(self) -> int | None:
        """Return a slot without work."""

    def give(self, slot: int, cell: PlannedCell, job: dict[str, Any]) -> None:
        """Take a cell to compute."""

    def answers(self, seconds: float) -> list[tuple[int, Outcome]]:
        """Wait at most about so long; return the outcomes of cells that are done."""


class _RecordedSteps:
    """Counts the steps in a growing record."""

    def __init__(self, run: Path) -> None:
        self._run, self._tails, self._steps = run, dict[Path, Tail](), 0

    def steps(self) -> int:
        """Return the number of steps in it so far."""
        for path in self._run.glob("record*.jsonl"):
            self._steps += sum(STEP in line for line in self._tails.setdefault(path, Tail(path)).new_lines())
        return self._steps


class _Processes:
    """The processes that compute cells; if one dies, its cell has failed and a new process replaces it."""

    def __init__(self, size: int, lock: int, log: Path) -> None:
        self._size, self._lock, self._log = size, lock, log
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._jobs: dict[int, dict[str, Any]] = {}
        self.busy: dict[int, tuple[PlannedCell, StepCounter]] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Processes:
        self._file: IO[bytes] = self._log.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes.values():
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._selector.close()
        self._file.close()

    @property
    def alone(self) -> bool:
        """Whether a cell is being computed that must run alone."""
        return any(cell.on == "processes" for cell, _ in self.busy.values())

    def idle(self) -> int | None:
        """Return a slot without work."""
        return next((slot for slot in range(self._size) if slot not in self.busy), None)

    def give(self, slot: int, cell: PlannedCell, job: dict[str, Any]) -> None:
        """Send a cell to a process."""
        process = self._processes.get(slot) or self._start(slot)
        assert process.stdin is not None
        self._jobs[slot] = job
        self.busy[slot] = cell, _RecordedSteps(Path(job["run"]))
        with contextlib.suppress(BrokenPipeError):  # a process that has died is noticed by the end of its output
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()

    def _start(self, slot: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "roundelay.study.cell_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._file,
            pass_fds=(self._lock,),
            start_new_session=True,  # only this process handles Ctrl-C
        )
        assert process.stdout is not None
        self._processes[slot] = process
        self._selector.register(process.stdout, selectors.EVENT_READ, slot)
        return process

    def answers(self, seconds: float) -> list[tuple[int, Outcome]]:
        """Wait at most so long; return the outcomes of cells that are done."""
        heard = [(key.data, self._answer(key.data)) for key, _ in self._selector.select(seconds)]
        return [(slot, outcome) for slot, outcome in heard if outcome is not None]

    def _answer(self, slot: int) -> Outcome | None:
        process = self._processes[slot]
        assert process.stdout is not None
        line, was_busy = process.stdout.readline(), self.busy.pop(slot, None) is not None
        if line:
            outcome: Outcome = json.loads(line)
            return outcome
        status = self._remove(slot, process)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        bad = {"status": "failed", "error": f"the process that computed it {how}"}
        return conclude(self._jobs[slot], bad) if was_busy else None

    def _remove(self, slot: int, process: subprocess.Popen[bytes]) -> int:
        """Remove a process that has ended; return its status."""
        assert process.stdout is not None
        assert process.stdin is not None
        self._selector.unregister(process.stdout)
        del self._processes[slot]
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        return process.wait()
