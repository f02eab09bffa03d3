"""What commands say to mistakes that users make: one line each, with where, what and what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import roundelay
from command_line import ROUNDELAY, call

ROOT = Path(__file__).parents[2]
TINY, STUDY = ROOT / "experiments" / "tiny.toml", ROOT / "experiments" / "studies" / "tiny.toml"

WEAK = {
    "a word for a number": (
        ["train", str(TINY), "--set", "optimizer.lr=fast"],
        "optimizer.lr must be a number, not 'fast'",
    ),
    "letters in the wrong case": (
        ["train", str(TINY), "--set", "optimizer.name=Adamw"],
        "optimizer.name: unknown 'Adamw'; did you mean 'AdamW'?",
    ),
    "a study to train": (["train", str(STUDY)], f"{STUDY}: a study, not an experiment; use roundelay compare for it"),
    "an experiment to compare": (
        ["compare", str(TINY)],
        f"{TINY}: an experiment, not a study; use roundelay train, or name it in a study",
    ),
    "more learners than minibatches": (
        ["train", str(TINY), "--learners", "2000", "--on", "simulator", "--set", "budget.minibatches=400"],
        "learners = 2000, but the budget has 400 minibatches; use at most 400 learners, more epochs, or smaller "
        "minibatches",
    ),
}


@pytest.mark.parametrize("name", sorted(WEAK))
def test_one_line_that_says_what_to_do(name: str, tmp_path: Path) -> None:
    words, message = WEAK[name]
    done = call(*words, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"roundelay: {message}"]
    assert not (tmp_path / "out").exists()


def test_a_strategy_to_plan_that_does_not_exist() -> None:
    done = call("plan", "laptop", "--strategy", "bumf")
    assert done.stderr.splitlines() == ["roundelay: unknown strategy 'bumf'; did you mean 'bmuf'?"]


def test_json_of_a_plan_is_json() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    said = call("plan", "laptop", "--no-sensitivity", "--strategy", "bmuf", "--json", "--learners", "2").stdout
    assert json.loads(said, parse_constant=refuse)["plans"]


def test_names_can_be_completed() -> None:
    assert {"join", "train", "BMUF", "simulate"} <= set(dir(roundelay))


@pytest.mark.slow
@pytest.mark.parametrize("ready", ["minibatches", "epoch 1 "])
def test_an_interrupted_run_says_how_it_continues(ready: str, tmp_path: Path) -> None:
    """By Ctrl-C, which reaches all processes of the terminal: while learners start, and while they train."""
    out = tmp_path / "run"
    command = [*ROUNDELAY, "train", str(TINY), "--out", str(out), "--learners", "2", "--set", "budget.epochs=100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        said = ""
        while ready not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        os.killpg(process.pid, signal.SIGINT)
        said += process.stderr.read()
        assert process.wait(60) == 130
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if line]
    assert lines[-2:] == [f"stopped; continue with: roundelay resume {out}", "roundelay: interrupted"]


@pytest.mark.slow
def test_a_killed_run_leaves_no_traceback_and_no_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [*ROUNDELAY, "train", str(TINY), "--out", str(out), "--learners", "2", "--set", "budget.epochs=100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("epoch 1 ") for line in process.stderr)
        process.kill()
        assert "Traceback" not in process.stderr.read()  # ends when the last process has
        process.wait(60)
        while _alive(process.pid):
            time.sleep(0.05)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
