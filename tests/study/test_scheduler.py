"""Studies that run: each cell once, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import ROUNDELAY
from roundelay.errors import SettingsError
from roundelay.strategies import STRATEGIES
from roundelay.study.definition import Study
from roundelay.study.matrix import PlannedCell
from roundelay.study.scheduler import Scheduler
from roundelay.study.statistics import choose_rate
from roundelay.study.study_folder import StudyFolder
from roundelay.study.summary import summarise
from study_files import write_study


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.before = self.total = 0
        self.seen: list[str] = []
        self.shares: list[float] = []

    def planned(self, total: int, done: int) -> None:
        self.total, self.before = total, done

    def started(self, slot: int, cell: PlannedCell) -> None:
        self.seen.append(f"start {cell.name}")

    def progressed(self, slot: int, share: float) -> None:
        self.shares.append(share)

    def finished(self, slot: int, outcome: dict[str, Any]) -> None:
        self.seen.append(f"{outcome['status']} {outcome['name']}")


def run(path: Path, out: Path, jobs: int = 1, *, retry: bool = False) -> tuple[Scheduler, Notes]:
    notes = Notes()
    scheduler = Scheduler(Study.read(path), out, jobs=jobs, watcher=notes, retry=retry)
    scheduler.run()
    return scheduler, notes


@pytest.mark.slow
def test_a_study_runs_once_and_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = write_study(tmp_path / "s.toml", seeds="[1]"), tmp_path / "out"
    scheduler, notes = run(path, out)
    assert len(scheduler.computed) == notes.total == 8 + 4
    assert not any(name.startswith(("failed", "diverged")) for name in notes.seen)
    chosen = json.loads((out / "runs" / "synchronous-2-seed-1" / "cell.json").read_text())["rate"]
    trials = [json.loads(file.read_text()) for file in sorted(out.glob("runs/synchronous-2-trial-*/cell.json"))]
    assert chosen == min(trials, key=lambda trial: trial["scores"]["error"])["rate"]
    again, notes = run(path, out)
    assert (again.computed, notes.before) == ([], 12)
    with monkeypatch.context() as patch:  # whichever trial looks better now, all seeds have one rate
        patch.setattr(Scheduler, "_score", lambda _, trial: 1.0 if trial.endswith(f"-{chosen:g}") else 0.0)
        more, notes = run(write_study(tmp_path / "s.toml", seeds="[1, 2]"), out)
    assert len(more.computed) == 4
    assert all("seed-2" in name for name in more.computed)
    assert json.loads((out / "runs" / "synchronous-2-seed-2" / "cell.json").read_text())["rate"] == chosen
    with pytest.raises(SettingsError, match="was computed with other settings"):
        run(write_study(tmp_path / "s.toml", epochs=2), out)


@pytest.mark.slow
def test_every_strategy_can_be_compared(tmp_path: Path) -> None:
    # 20 steps of each learner, of which 2 blocks are enough: periods above 1, so that something happens within them
    path = write_study(
        tmp_path / "s.toml", strategies=list(STRATEGIES), learners="[4]", seeds="[1]", rates="[]", epochs=2,
        target=1.0, more="blocks = 2",
    )  # fmt: skip
    scheduler, _ = run(path, tmp_path / "out")
    assert {outcome["error"] for outcome in scheduler.outcomes.values()} == {""}
    rows = {row["strategy"]: row for row in summarise(tmp_path / "out")["rows"] if row["learners"] == 4}
    assert rows.keys() == STRATEGIES.keys()
    assert all(row["rank"] for row in rows.values())  # none is outside its regime


@pytest.mark.slow
def test_kill_9_costs_no_more_than_the_cells_it_hit(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s.toml", epochs=12), tmp_path / "out"
    words = [*ROUNDELAY, "compare", str(path), "--out", str(out), "--jobs", "2", "--no-report"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(out.glob("runs/*/cell.json"))) < 9 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with StudyFolder(out).locked():  # those who computed are gone when the lock is free
        pass
    before = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/cell.json")}
    begun = {folder.name for folder in (out / "runs").iterdir()}
    hit = begun - {file.parent.name for file in before}
    assert 9 <= len(before) < 16
    assert len(hit) <= 2
    assert {cell["name"] for cell in summarise(out)["cells"] if cell["status"] == "interrupted"} == hit
    scheduler, notes = run(path, out, jobs=2)
    assert notes.before == len(before)
    assert len(scheduler.computed) == 16 - len(before)
    assert hit <= set(scheduler.computed)
    assert all(file.stat().st_mtime_ns == then for file, then in before.items())
    assert summarise(out)["complete"]


@pytest.mark.slow
def test_what_diverges_or_dies_is_kept_and_marked(tmp_path: Path) -> None:
    strategies = '["synchronous", { name = "synchronous", label = "wild", scale = 30 }]'
    path = write_study(tmp_path / "s.toml", strategies=strategies, learners="[2]", seeds="[1]", rates="[1.0, 9.0]")
    out = tmp_path / "out"
    notes = Killer("synchronous-1-seed-1")
    Scheduler(Study.read(path), out, jobs=1, watcher=notes).run()
    summary = summarise(out)
    status = {cell["name"]: cell["status"] for cell in summary["cells"]}
    assert status["wild-2-seed-1"] == "diverged"
    assert status["synchronous-1-seed-1"] == "failed"
    errors = {fault["cell"]: fault["error"] for fault in summary["faults"]}
    assert "signal 9" in errors["synchronous-1-seed-1"]
    assert "not finite" in errors["wild-2-seed-1"] or "loss is" in errors["wild-2-seed-1"]
    trials = next(trials for trials in summary["trials"] if trials["strategy"] == "wild")
    assert trials["scores"] == [None, None]
    assert trials["statuses"] == ["diverged", "diverged"]
    again, _ = run(path, out)
    assert again.computed == []
    again, _ = run(path, out, retry=True)
    assert "synchronous-1-seed-1" in again.computed
    assert "synchronous-2-seed-1" not in again.computed
    assert {cell["name"]: cell["status"] for cell in summarise(out)["cells"]}["synchronous-1-seed-1"] == "done"


class Killer(Notes):
    """Kills the process that computes a cell."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        self.victim = victim

    def started(self, slot: int, cell: PlannedCell) -> None:
        super().started(slot, cell)
        if cell.name == self.victim:
            for folder in Path("/proc").iterdir():
                if folder.name.isdecimal() and _is_worker(folder):
                    os.kill(int(folder.name), signal.SIGKILL)


def _is_worker(folder: Path) -> bool:
    try:
        mine = f"PPid:\t{os.getpid()}\n" in (folder / "status").read_text()
        return mine and b"roundelay.study.cell_worker" in (folder / "cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
def test_cells_on_processes(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.toml", learners="[2]", seeds="[1]", rates="[]", more='on = "processes"')
    _, notes = run(path, tmp_path / "out", jobs=2)
    summary = summarise(tmp_path / "out")
    assert {cell["status"] for cell in summary["cells"]} == {"done"}, summary["faults"]
    assert {(cell["clock"], cell["cluster"]) for cell in summary["cells"]} == {("wall", "this machine")}
    starts = [word.startswith("start") for word in notes.seen]
    assert starts == [True, False] * 3  # one at a time, though two were allowed


def test_the_best_trial_that_was_finished_is_chosen() -> None:
    assert choose_rate({0.1: 0.3, 0.2: 0.2, 0.3: 0.1}) == 0.3
    assert choose_rate({0.1: 0.3, 0.2: 0.2, 0.3: None}) == 0.2
    assert choose_rate({0.1: 0.2, 0.2: 0.2}) == 0.1
    assert choose_rate({0.2: None, 0.1: None}) == 0.1
