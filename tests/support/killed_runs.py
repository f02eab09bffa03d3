"""``roundelay train`` killed by SIGKILL, all its processes at once, at a moment drawn at random; then resumed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from command_line import ROUNDELAY, call
from roundelay.training.checkpoint_files import Checkpoints

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "tiny.toml"
EVERY_FRAMES = 800
SMALL = ("budget.minibatches=400", f"checkpoint.every_frames={EVERY_FRAMES}", "task.hidden=[16]", "record.max_spans=20")
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


@dataclass(frozen=True)
class Pace:
    """How fast a run goes that is left alone."""

    begin: float
    """Seconds from the moment that there is a run to its first checkpoint."""
    between: float
    """Seconds from one checkpoint to the next."""
    positions: range
    """Where the checkpoints are, from 0: the beginning."""


@dataclass
class Killed:
    """What became of a run that was killed."""

    moments: list[str] = field(default_factory=list)
    """What the newest checkpoint was at each kill; "end" of a resumption that came to its end before."""
    same: bool = False
    """Whether the model is that of the run that was left alone."""


def words(strategy: str, run: Path, *more: str) -> list[str]:
    """Return the command line of a small run."""
    sets = [*SMALL, *([f"strategy.{PERIODS[strategy]}"] if strategy in PERIODS else [])]
    settings = [word for each in sets for word in ("--set", each)]
    return ["train", str(EXPERIMENT), "--out", str(run), "--strategy", strategy, *settings, *more]


def undisturbed(strategy: str, run: Path, *more: str) -> Pace:
    """Train to the end; return how fast that went."""
    process = start(words(strategy, run, *more))
    seen: dict[int, float] = {}
    begun = wait_for(run / "run.json", process)
    while process.poll() is None:
        seen.setdefault(newest(run), time.monotonic())
        time.sleep(0.002)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    first, *_, last = sorted(seen.keys() - {0})
    step = EVERY_FRAMES // 32
    return Pace(
        begin=seen[first] - begun,
        between=(seen[last] - seen[first]) * step / (last - first),
        positions=range(0, last + 1, step),
    )


def kill_and_resume(strategy: str, run: Path, like: Path, pace: Pace, seed: int, *more: str) -> Killed:
    """Kill a run at a random moment, and half of the time its first resumption too; compare it with ``like``."""
    rng, killed = random.Random(seed), Killed()
    while not killed.moments:
        shutil.rmtree(run, ignore_errors=True)
        moment = kill(words(strategy, run, *more), run, rng.choice(pace.positions), pace, rng)
        killed.moments += [moment] if moment != "end" else []  # which was too late: again
    if rng.random() < 0.5:
        left = [position for position in pace.positions if position >= newest(run)]
        killed.moments.append(kill(["resume", str(run)], run, rng.choice(left), pace, rng))
    done = call("resume", str(run))
    assert done.returncode == 0, done.stderr
    killed.same = (run / "model.safetensors").read_bytes() == (like / "model.safetensors").read_bytes()
    return killed


def kill(command: list[str], run: Path, after: int, pace: Pace, rng: random.Random) -> str:
    """Start a command and kill it some time after it has saved at a position, before it saves again; return where."""
    before, process = newest(run), start(command)
    wait_for(run / "run.json", process)
    while process.poll() is None and newest(run) < after:
        time.sleep(0.001)
    try:
        process.wait(rng.uniform(0.0, pace.begin if after == before else pace.between))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return "end" if process.returncode == 0 else str(newest(run))


def newest(run: Path) -> int:
    """Return where the newest checkpoint is; 0: there is none."""
    return max(Checkpoints(run).positions(), default=0)


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
