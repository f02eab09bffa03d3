"""Runs in which learners are killed or stopped, and what their records tell of it."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import fault_schedules
import process_jobs
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.cluster import Fault as ClusterFault
from roundelay.runtimes.fault_plan import FaultPlan
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.processes.options import Options
from roundelay.runtimes.simulator.simulation import simulate
from roundelay.strategies import STRATEGIES
from roundelay.training.budget import Budget
from roundelay.training.loop import Job


@dataclass
class Fault:
    """Send a signal to a learner's process so long after all have started, and perhaps another after that."""

    learner: int
    after_seconds: float
    signals: tuple[int, ...] = (signal.SIGKILL,)
    pause_seconds: float | None = 0.0
    """Between two signals; None: until the others have gone on without the learner."""
    at: float = field(default=0.0, init=False)
    """When it happened, in seconds since the run began."""
    over: float = field(default=0.0, init=False)
    """When the last signal was sent, likewise."""

    def wreak(self, folder: Path, size: int) -> None:
        while len(list(folder.glob("pid-?"))) < size:
            time.sleep(0.005)
        time.sleep(self.after_seconds)
        process, began = json.loads((folder / f"pid-{self.learner}").read_text())
        self.at = time.time() - began
        for index, number in enumerate(self.signals):
            if index and self.pause_seconds is None:
                await_true(lambda: went_on(folder, self.at))
            elif index:
                time.sleep(self.pause_seconds or 0.0)
            self.over = time.time() - began
            os.kill(process, number)


def await_true(what: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until it is true, or for so long."""
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return all that the learners have recorded up to now."""
    parts = [part.read_text().splitlines() for part in folder.glob("record-*.jsonl")]
    return [json.loads(line) for part in parts for line in part if line.endswith("}")]


def went_on(folder: Path, after: float) -> bool:
    """Tell whether a learner was noticed to be lost after this moment, and others have trained since."""
    lines = lines_of(folder)
    lost = [line["time"] for line in lines if line["event"] == "lost" and line["time"] > after]
    return any(line["event"] == "step" and line["time"] > min(lost) for line in lines) if lost else False


@dataclass
class Outcome:
    """What came of a run."""

    results: list[Any]
    steps: dict[int, list[tuple[float, int]]]
    """By learner's number in its file's name: when it finished which minibatch."""
    events: list[dict[str, Any]]

    @property
    def trained(self) -> Counter[int]:
        """How often each minibatch was trained, as far as the records tell."""
        return Counter(minibatch for steps in self.steps.values() for _, minibatch in steps)

    def stall(self, fault: Fault, until: float | None = None) -> float:
        """Return the longest time between two steps of a survivor that ended after the fault, and before ``until``."""
        longest = [0.0]
        for learner, steps in self.steps.items():
            if learner != fault.learner:
                times = [time for time, _ in steps if until is None or time < until]
                longest += [b - a for a, b in itertools.pairwise(times) if b > fault.at]
        return max(longest)

    def longest_before(self, fault: Fault) -> float:
        """Return the longest time between two steps of a survivor before the fault: what the machine does anyway."""
        times = [[time for time, _ in steps] for learner, steps in self.steps.items() if learner != fault.learner]
        return max((b - a for each in times for a, b in itertools.pairwise(each) if b < fault.at), default=0.0)

    def pause(self, moment: float, fault: Fault) -> float:
        """Return the longest time between two steps of a survivor with this moment in it."""
        times = [[time for time, _ in steps] for learner, steps in self.steps.items() if learner != fault.learner]
        return max(
            (b - a for each in times for a, b in itertools.pairwise(each) if a <= moment + 0.01 < b), default=0.0
        )

    @property
    def joined(self) -> list[dict[str, Any]]:
        """Who joined, and when."""
        return [event for event in self.events if event["event"] == "joined"]


def run(
    settings: dict[str, Any], *, size: int, folder: Path, faults: list[Fault], options: Options, restarts: int = 0
) -> Outcome:
    """Train by ``settings`` with these faults."""
    threads = [threading.Thread(target=fault.wreak, args=(folder, size), daemon=True) for fault in faults]
    for thread in threads:
        thread.start()
    entry = process_jobs.entry("train_traced")
    settings = {**settings, "folder": str(folder)}
    results = launcher.run(
        entry, settings, size=size, folder=folder, options=options, faults=FaultPlan(rejoins=restarts)
    )
    for thread in threads:
        thread.join()
    steps: dict[int, list[tuple[float, int]]] = {}
    for part in folder.glob("record-*.jsonl"):
        lines = [json.loads(line) for line in part.read_text().splitlines() if line.endswith("}")]
        mine = [(x["time"], x["minibatch"]) for x in lines if x["event"] == "step"]
        learner = int(part.stem.split("-")[1])  # with a further number where it was started again
        steps[learner] = sorted([*steps.get(learner, []), *mine])
    events = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    return Outcome(results, steps, events)


# -- starting and stopping ----------------------------------------------------------------------------------------


def learners_left() -> list[int]:
    """Return learners that some fork server of this process still has."""
    return [grandchild for child in _children_of(os.getpid()) for grandchild in _children_of(child)]


def _children_of(process: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{process}\n" in status.read_text():
                found.append(int(status.parent.name))
    return found


def usage() -> dict[str, int]:
    """Return what this process uses."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    kilobytes = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    return {
        "kilobytes": kilobytes,
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
    }


def cycle_simulated(turn: int) -> None:
    """Start and stop a simulated run, every other one with a fault."""
    names = sorted(STRATEGIES)
    strategy = fault_schedules.make_strategy(names[turn % len(names)])
    faults = [ClusterFault(1, 0.05, 0.1)] if turn % 2 else []
    job = Job(fault_schedules.Pull(8), strategy, Budget(8, 8), lambda m: torch.optim.SGD(m.parameters(), lr=0.05))
    simulate(job.training, Cluster(faults=faults), learners=4, servers=strategy.servers, seed=turn)


def cycle_processes() -> None:
    """Start and stop a run on two processes."""
    launcher.run(process_jobs.entry("train"), {"strategy": "gossip", "minibatches": 6}, size=2)
