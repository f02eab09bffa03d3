"""``roundelay resume`` as a user calls it, after kill -9 of everything, under torchrun and MPI too."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from command_line import ROUNDELAY, call
from killed_runs import LOCKSTEP, kill_and_resume, undisturbed, words
from roundelay.cli.resume import command as resume
from roundelay.experiment.backends import RunOptions
from roundelay.experiment.run_training import Run
from roundelay.strategies import STRATEGIES
from roundelay.training.checkpoint_files import Checkpoints

pytestmark = [pytest.mark.timeout(600)]

SEED = random.SystemRandom().randrange(10_000)
"""Another moment each time; a failure tells it."""


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(2))
def test_a_killed_job_on_processes_resumes_to_the_same_bits(trial: int, tmp_path: Path) -> None:
    strategy = LOCKSTEP[(SEED + trial) % len(LOCKSTEP)]
    two = ("--learners", "2")
    pace = undisturbed(strategy, tmp_path / "through", *two)
    killed = kill_and_resume(strategy, tmp_path / "killed", tmp_path / "through", pace, SEED + trial, *two)
    assert killed.same, f"{strategy}, seed {SEED + trial}, killed at {killed.moments}"
    record = [json.loads(line) for line in (tmp_path / "killed" / "record.jsonl").read_text().splitlines()]
    steps = sorted(event["minibatch"] for event in record if event["event"] == "step")
    assert steps == list(range(400)), f"{strategy}, seed {SEED + trial}"


@pytest.mark.slow
def test_a_killed_simulation_resumes_to_the_same_bits(tmp_path: Path) -> None:
    strategy = sorted(STRATEGIES)[SEED % len(STRATEGIES)]
    given = ("--learners", "4", "--on", "simulator", "--shuffle-ties", "7")
    pace = undisturbed(strategy, tmp_path / "through", *given)
    killed = kill_and_resume(strategy, tmp_path / "killed", tmp_path / "through", pace, SEED, *given)
    assert killed.same, f"{strategy}, seed {SEED}, killed at {killed.moments}"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run that ended in its middle, by a checkpoint that could not be written."""
    run = tmp_path_factory.mktemp("runs") / "stopped"
    given = ("--on", "simulator", "--learners", "2", "--set", "budget.minibatches=300")
    done = call(*words("bmuf", run, *given))
    assert done.returncode == 0, done.stderr
    for name in ("model.safetensors", "model.json"):
        (run / name).unlink()
    newest = Checkpoints(run).positions()[0]
    shutil.rmtree(Checkpoints(run).place(newest))
    return run


def copied(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def test_another_number_of_learners_says_what_changes(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    done = call("resume", str(run), "--learners", "3")
    assert done.returncode == 0, done.stderr
    assert "3 learners in place of 2: all start from the mean of weights" in done.stderr
    assert "BMUF keeps its delta; a global batch has 96 frames in place of 64" in done.stderr
    assert "learners = 3" in (run / "settings.toml").read_text()
    assert json.loads((run / "run.json").read_text())["learners"] == 3
    again = call("resume", str(run))
    assert again.returncode == 0
    assert "already finished" in again.stderr


def test_a_number_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = ("--on", "simulator", "--learners", "4", "--set", "budget.minibatches=60")
    more = ("--set", "strategy.topology=butterfly")
    assert call(*words("averaging", run, *given, *more)).returncode == 0
    (run / "model.safetensors").unlink()
    done = call("resume", str(run), "--learners", "3")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "learners = 4" in (run / "settings.toml").read_text()


def test_a_damaged_checkpoint_is_named(stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    newest, before = Checkpoints(run).positions()[:2]
    path = Checkpoints(run).place(newest) / "rank-0.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    done = call("resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    assert "rank-0.safetensors: damaged: not the bytes that were written" in done.stderr
    assert f"resuming from the checkpoint before it, at minibatch {before}" in done.stderr
    assert json.loads(done.stdout)["run"] == str(run)


@pytest.mark.parametrize(
    "damage", ["nothing", "settings", "{", "[]", '{"on": "moon"}', '{"on": "mpi", "options": {"slow": ["x"]}}']
)
def test_what_is_no_run_is_named(damage: str, stopped: Path, tmp_path: Path) -> None:
    run = copied(stopped, tmp_path)
    if damage == "nothing":
        (run / "settings.toml").unlink()
    elif damage == "settings":
        (run / "settings.toml").write_text("learners = 'two'")
    else:
        (run / "run.json").write_text(damage)
    done = call("resume", str(run))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(run) in done.stderr


def test_only_who_was_slowed_is_slowed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = tmp_path / "run"
    straggler = ("--set", "cluster.stragglers=[{learner=0, factor=9.0}]")  # of the simulator alone
    given = ("--learners", "2", "--slow", "1=1.5", "--set", "budget.minibatches=4", *straggler)
    assert call(*words("averaging", run, *given)).returncode == 0
    (run / "model.safetensors").unlink()
    begun: list[Any] = []

    def note(experiment: object, path: Path, *, options: RunOptions, **more: Any) -> Run:
        begun.append(options.slow)
        return Run({}, 0.0, "wall", reported=False)

    monkeypatch.setattr("roundelay.experiment.continuation.run", note)
    for more in ([], ["--learners", "1"]):
        resume.main([str(run), *more], standalone_mode=False)
    assert begun == [{1: 1.5}, {}]


# -- launchers --------------------------------------------------------------------------------------------------------


def kill_one(marker: str, begun: Path) -> None:
    """Kill one of the processes of a job, once it has a checkpoint of both."""
    deadline = time.monotonic() + 200
    while not any((each.parent / "rank-0.json").exists() for each in begun.glob("*/rank-1.json")):
        assert time.monotonic() < deadline, "there is no checkpoint"
        time.sleep(0.02)
    ours = os.getpid()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != ours:
            try:
                environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            theirs = marker.encode() in environment and b"RANK=1\0" in environment
            if theirs and b"torch.distributed" not in command:
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise AssertionError("there was nobody to kill")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "mpi"])
def test_a_lost_rank_ends_the_attempt_and_the_run_resumes_by_itself(launcher: str, tmp_path: Path) -> None:
    run, through, two = tmp_path / "run", tmp_path / "through", ("--learners", "2")
    assert call(*words("synchronous", through, *two)).returncode == 0
    marker = f"ROUNDELAY_TEST={tmp_path}"
    command = words("synchronous", run, *two)
    if launcher == "mpi":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
        started = [*ROUNDELAY, *command, "--on", "mpi", "--restarts", "1"]
    else:
        started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        started += ["--max-restarts", "1", "-m", "roundelay", *command]
    process = subprocess.Popen(
        started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"ROUNDELAY_TEST": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        kill_one(marker, run / "checkpoints")
        _, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, err
    same = (run / "model.safetensors").read_bytes() == (through / "model.safetensors").read_bytes()
    assert same, load_file(run / "model.safetensors")
    if launcher == "mpi":
        assert "resuming, 0 more times if need be" in err
    record = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "resumed" for event in record) == 1
    assert sorted(event["minibatch"] for event in record if event["event"] == "step") == list(range(400))
    assert [
        event["member"] for event in sorted(record, key=lambda event: event["member"]) if event["event"] == "totals"
    ] == [
        "learner 0",
        "learner 1",
    ]
    assert (run / "trace.json").is_file()
