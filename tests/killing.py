"""``roundelay train`` killed by SIGKILL, all its processes at once, at a moment drawn at random; then resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from roundelay.checkpoint import Checkpoints

ROUNDELAY = [sys.executable, "-c", "from roundelay.cli import main; main()"]
EXPERIMENT = Path(__file__).resolve().parents[1] / "experiments" / "tiny.toml"
SMALL = ("budget.minibatches=400", "checkpoint.every_frames=800", "task.hidden=[16]", "record.spans=20")
PERIODS = {
    "averaging": "period=7",
    "bmuf": "block=7",
    "diloco": "block=7",
    "slowmo": "period=7",
    "gossip-pga": "period=7",
}
LOCKSTEP = (
    *("averaging", "bmuf", "delay-by-one", "diloco", "dpsgd", "easgd-synchronous"),
    *("gossip-pga", "sgp", "slowmo", "synchronous"),
)
PATIENCE_SECONDS = 250.0


@dataclass
class Killed:
    """What became of a run that was killed."""

    moments: list[str] = field(default_factory=list)
    """Where it stood at each kill, in minibatches saved."""
    same: bool = False
    """Whether the model is that of the run that was left alone."""


def words(strategy: str, run: Path, *more: str) -> list[str]:
    """Return the command line of a small run."""
    sets = [*SMALL, *([f"strategy.{PERIODS[strategy]}"] if strategy in PERIODS else [])]
    settings = [word for each in sets for word in ("--set", each)]
    return ["train", str(EXPERIMENT), "--out", str(run), "--strategy", strategy, *settings, *more]


def undisturbed(strategy: str, run: Path, *more: str) -> float:
    """Train to the end; return how many seconds the run itself took."""
    process = start(words(strategy, run, *more))
    begun = wait_for(run / "run.json", process)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    return time.monotonic() - begun


def kill_and_resume(strategy: str, run: Path, like: Path, seconds: float, seed: int, *more: str) -> Killed:
    """Kill a run at a random moment, and half of the time its first resumption too; compare it with ``like``."""
    rng, killed = random.Random(seed), Killed()
    for command in [words(strategy, run, *more), *([["resume", str(run)]] if rng.random() < 0.5 else [])]:
        process = start(command)
        wait_for(run / "run.json", process)
        delay = rng.uniform(0.0, seconds) + (0.0 if command[0] == "train" else 2.0)  # until it has begun again
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        saved = Checkpoints(run).positions()
        killed.moments.append("end" if process.returncode == 0 else str(saved[0] if saved else 0))
    done = subprocess.run([*ROUNDELAY, "resume", str(run)], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    killed.same = (run / "model.safetensors").read_bytes() == (like / "model.safetensors").read_bytes()
    return killed


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start a command in a group of processes of its own."""
    return subprocess.Popen(
        [*ROUNDELAY, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> float:
    """Wait until there is such a file, or the process has ended; return the time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return time.monotonic()
