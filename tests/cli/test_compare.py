"""``roundelay compare`` as a user calls it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from command_line import ROUNDELAY, call

STUDY = """
strategies = {strategies}
learners = [2]
seeds = [1]
target = {{ value = {target} }}
tuning = {{ rates = [0.05, 0.2], budget_fraction = 0.5 }}

[experiment]
task = {{ name = "tiny", frames_per_epoch = 640, hidden = [8] }}
batch = {{ size = 16 }}
optimizer = {{ name = "SGD", lr = 0.1 }}
budget = {{ epochs = {epochs}, evaluate_every = 20 }}
"""


def write(path: Path, strategies: str = '["averaging"]', target: float = 0.9, epochs: int = 1) -> Path:
    path.write_text(STUDY.format(strategies=strategies, target=target, epochs=epochs))
    return path


@pytest.mark.slow
def test_a_study_and_its_report(tmp_path: Path) -> None:
    path, out = write(tmp_path / "small.toml"), tmp_path / "out"
    done = call("compare", str(path), "--out", str(out), "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert "2 learners in the simulator: averaging reaches error 90.0 % first" in done.stdout
    lines = done.stderr.splitlines()
    assert lines[0] == "6 cells"
    assert sum("/6  " in line for line in lines) == 6  # a line a cell, where there is no terminal
    assert "averaging" in (out / "report.html").read_text()
    again = call("compare", str(path), "--out", str(out), "--json", "--no-report")
    told = json.loads(again.stdout)
    assert told["computed"] == 0
    assert told["answer"]["winner"] == "averaging"
    assert {trial["strategy"] for trial in told["trials"]} == {"averaging", "synchronous"}
    assert "6 cells, 6 of them computed before" in again.stderr


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ('["averaging", "bumf"]', "small.toml: strategies[1]: unknown strategy 'bumf'; did you mean 'bmuf'?"),
        ('[{ name = "bmuf", blocks = 2 }]', "strategy: unknown key 'blocks'; did you mean 'block'?"),
        ("[]", "strategies: at least one is needed"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(strategies: str, message: str, tmp_path: Path) -> None:
    path, out = write(tmp_path / "small.toml", strategies), tmp_path / "out"
    done = call("compare", str(path), "--out", str(out))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not out.exists()


def test_a_dry_run_computes_nothing(tmp_path: Path) -> None:
    path, out = write(tmp_path / "small.toml", '["bmuf"]'), tmp_path / "out"
    done = call("compare", str(path), "--out", str(out), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "bmuf-2-seed-1  640 frames  the best trial's rate  too few blocks: 20 blocks of 1 steps" in done.stdout
    assert "4 trials and 2 runs" in done.stdout
    assert not out.exists()


@pytest.mark.slow
def test_a_target_never_reached_is_a_miss(tmp_path: Path) -> None:
    path = write(tmp_path / "small.toml", target=0.0)
    done = call("compare", str(path), "--out", str(tmp_path / "out"), "--no-report", "--json")
    told = json.loads(done.stdout)
    assert told["answer"]["winner"] is None
    assert "no ranked strategy reached error 0.0 %" in told["answer"]["headline"]
    assert {row["rank"] for row in told["rows"]} == {None}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_leaves_nobody_behind_and_says_how_to_go_on(tmp_path: Path) -> None:
    path, out = write(tmp_path / "small.toml", epochs=200), tmp_path / "out"
    words = [*ROUNDELAY, "compare", str(path), "--out", str(out), "--jobs", "1"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 150
    while not list(out.glob("runs/*/record.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "stopped after 0 of 6 cells; run the same command to continue" in said
    assert "roundelay.study.cell_worker" not in _commands_of(out)


def _commands_of(out: Path) -> str:
    """Return the command lines of all processes that have something open in a folder."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if any(os.readlink(file).startswith(str(out)) for file in (folder / "fd").iterdir()):
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return " ".join(found)


@pytest.mark.slow
def test_bars_on_a_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "small.toml", epochs=20)
    ours, theirs = pty.openpty()
    words = [*ROUNDELAY, "compare", str(path), "--out", str(tmp_path / "out"), "--jobs", "1", "--no-report"]
    process = subprocess.Popen(words, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    seen = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        seen += more
    os.close(ours)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 0
    text = seen.decode()
    assert "study" in text
    assert "averaging-2-trial-0.1" in text
    assert "━" in text
