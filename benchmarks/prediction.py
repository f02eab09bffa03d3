"""Compare predicted with measured step times: python benchmarks/prediction.py [ROUNDS [STEPS]].

A run of `synchronous` on 2 real processes is recorded and calibrated.  The simulator then predicts the median step of
`bmuf`, `delay-by-one` and `adpsgd` and of a model four times larger on 2 processes; and, from another recorded run of 2
whose gradients are mostly slept, of all four strategies on 4 processes.  Every round makes all runs, in another order;
predictions and measurements are medians over rounds.  Nothing that is predicted is used in a calibration.  It is
assumed that a model four times larger takes four times as long.  The goal is 15 %.  Run it on an idle machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from roundelay.learner import Learner
from roundelay.planning.calibration import calibrate, read_spans
from roundelay.planning.timing import period_of
from roundelay.planning.timing_simulation import TotalsRecord, time_only
from roundelay.runtimes.cluster import Cluster
from roundelay.strategies import find
from roundelay.task import Task
from roundelay.training.budget import Budget
from roundelay.training.loop import Job

LAYERS, FRAMES, WARM = 6, 512, 3
GOAL = 0.15


@dataclass(frozen=True)
class Case:
    """One kind of run."""

    name: str
    strategy: str
    processes: int = 2
    width: int = 512
    sleep: float = 0.0

    @property
    def model_bytes(self) -> float:
        """Return the size of the model's vector."""
        return 4.0 * LAYERS * (self.width + 1) * self.width


WORKED = Case("synchronous", "synchronous")
SLEPT = Case("synchronous, slept", "synchronous", width=256, sleep=0.045)
PREDICTED = {
    WORKED: [
        Case("bmuf", "bmuf"),
        Case("delay-by-one", "delay-by-one"),
        Case("adpsgd", "adpsgd"),
        Case("synchronous, 4 x the model", "synchronous", width=1024),
    ],
    SLEPT: [
        Case(f"{name}, slept, 4 processes", name, processes=4, width=256, sleep=0.045)
        for name in ("synchronous", "bmuf", "delay-by-one", "adpsgd")
    ],
}
"""What is predicted from which recorded run."""


@dataclass
class Dense(Task):
    """A stack of equal layers on made-up frames; a gradient may be followed by a sleep."""

    width: int = 512
    sleep: float = 0.0
    minibatches_per_epoch: int = 10**9
    nominal_frames: int = FRAMES
    held_out_minibatches: int = 0

    def make_module(self) -> nn.Module:
        torch.manual_seed(0)
        layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(self.width, self.width), nn.ReLU()))
        return nn.Sequential(*layers)

    def load(self, epoch: int, index: int) -> Tensor:
        return torch.full((FRAMES if not self.sleep else 32, self.width), 0.01)

    def loss(self, module: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = module(batch).square().mean()
        return loss

    def gradient(self, learner: Learner, batch: Any) -> float:
        loss = super().gradient(learner, batch)
        time.sleep(self.sleep)
        return loss


def learner(runtime: Any, settings: dict[str, Any]) -> None:
    """Train one learner of a case."""
    budget = Budget(10**9, settings["minibatches"])
    task = Dense(settings["width"], settings["sleep"])
    runtime.run(Job(task, find(settings["strategy"])(), budget).training(runtime).run())


def run(case: Case, steps: int, folder: Path) -> None:
    """Run a case on real processes and leave its record in ``folder``."""
    from roundelay.runtimes.processes import launcher as launch
    from roundelay.runtimes.processes.options import Options

    settings = dataclasses.asdict(case) | {"minibatches": case.processes * steps}
    launch.run(f"{__file__}:learner", settings, size=case.processes, folder=folder, options=Options())


def measured(folder: Path) -> float:
    """Return the median step of all learners."""
    spans = read_spans(folder / "record.jsonl")
    return statistics.median(
        seconds for member, each in spans.items() if member.startswith("learner") for seconds, _, _ in each.steady()
    )


def predicted(cluster: Cluster, base: Case, case: Case, steps: int) -> float:
    """Return the median step in the simulator."""
    larger = case.model_bytes / base.model_bytes
    compute = dataclasses.replace(cluster.compute, seconds=cluster.compute.seconds * larger)
    machine = dataclasses.replace(cluster, model_bytes=case.model_bytes, compute=compute)
    strategy, tally = find(case.strategy)(), TotalsRecord()
    steps = max(steps, 2 * period_of(strategy, FRAMES))
    time_only(strategy, machine, learners=case.processes, steps=steps, frames=FRAMES, record=tally)
    times: dict[str, list[float]] = {}
    for member, moment in zip(tally.members, tally.steps, strict=True):
        times.setdefault(member, []).append(moment)
    return statistics.median(b - a for each in times.values() for a, b in itertools.pairwise(each[WARM - 1 :]))


def middle(clusters: list[Cluster]) -> Cluster:
    """Return the cluster of the median gradient."""
    return sorted(clusters, key=lambda cluster: cluster.compute.seconds)[len(clusters) // 2]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    cases = [case for base, others in PREDICTED.items() for case in (base, *others)]
    found: dict[Case, list[float]] = {case: [] for case in cases}
    clusters: dict[Case, list[Cluster]] = {base: [] for base in PREDICTED}
    for turn in range(rounds):
        for case in random.Random(turn).sample(cases, len(cases)):
            with tempfile.TemporaryDirectory() as name:
                run(case, steps, Path(name))
                found[case].append(measured(Path(name)))
                if case in PREDICTED:
                    clusters[case].append(calibrate(Path(name), model_bytes=case.model_bytes).cluster)
        print(f"round {turn + 1} of {rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    rows = []
    for base, others in PREDICTED.items():
        cluster = middle(clusters[base])
        compute = cluster.compute
        print(
            f"calibrated: {base.name}, step {1e3 * statistics.median(found[base]):.2f} ms, own "
            f"{1e3 * compute.seconds:.2f} ms, jitter {compute.jitter:.3f}, {cluster.copy_bandwidth / 1e9:.2f} GB/s"
        )
        for case in others:
            truth, guess = statistics.median(found[case]), predicted(cluster, base, case, steps)
            off = guess / truth - 1
            rows.append({"case": case.name, "measured": truth, "predicted": guess, "off": off})
            mark = "" if abs(off) <= GOAL else "  more than the goal"
            print(
                f"  {case.name:35s} measured {1e3 * truth:8.2f} ms  predicted {1e3 * guess:8.2f} ms  {off:+.1%}{mark}"
            )
    print(json.dumps({"rounds": rounds, "steps": steps, "load": os.getloadavg()[0], "cases": rows}))


if __name__ == "__main__":
    main()
