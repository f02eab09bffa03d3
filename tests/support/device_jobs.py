"""What processes with the stand-in accelerator run: the contract's cases on it, and counts of what they cost.

Run as a program, it calls one of its functions and prints the result as JSON.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # ranks are started without pytest's path

import operation_jobs
from roundelay.devices import choose_device, use_device
from roundelay.errors import RoundelayError
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.simulator.simulation import replay
from roundelay.strategies import find
from roundelay.training.event_order import RecordedOrder
from roundelay.training.loop import Job
from strategy_cases import CASES, fitting, run_simulated
from tiny_jobs import Watching, tiny_job

MINIBATCHES = 60
WARM_STEPS = 10


def job_of(case: str, device: str = "cpu") -> Job:
    """What each case trains, wherever it runs."""
    return tiny_job(
        CASES[case](), minibatches=MINIBATCHES, task={"dropout": 0.1, "batch_norm": True}, debug=True, device=device
    )


def digest(vector: torch.Tensor) -> str:
    """Return the bits of a vector, in short."""
    return hashlib.sha256(vector.detach().cpu().numpy().tobytes()).hexdigest()[:16]


def simulate(device: str, learners: int, cases: list[str]) -> dict[str, list[str]]:
    """Run cases in the simulator on a device; return by case the bits of what all ranks have in the end."""
    torch.set_num_threads(1)
    found = {}
    for case in cases:
        ran = run_simulated(job_of(case, device), fitting(CASES[case](), learners))
        assert all(weights.device.type == device for weights in ran.weights)
        found[case] = [*map(digest, ran.consensus), *map(digest, ran.weights)]
    return found


def entry(name: str) -> str:
    """Name a function of this file for a launcher."""
    return f"{Path(__file__).resolve()}:{name}"


def train(runtime: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one case as one rank on a device; return what it came to, as bits, and the order of it all."""
    import stand_in_device

    torch.set_num_threads(1)
    order = RecordedOrder()
    training = job_of(settings["case"], settings["device"]).training(runtime, order)
    consensus = runtime.run(training.run())
    return {
        "consensus": digest(consensus),
        "order": order.tokens,
        "device": str(training.learner.weights.device),
        "touched": stand_in_device.counts()["touched"],
    }


def on_processes(device: str, learners: int, cases: list[str]) -> dict[str, Any]:
    """Run cases on processes; by case: the bits of the run, and of what the simulator makes of it on the CPU."""
    torch.set_num_threads(1)
    found = {}
    for case in cases:
        strategy = CASES[case]()
        size = fitting(strategy, learners)
        results = launcher.run(entry("train"), {"case": case, "device": device}, size=size + strategy.servers)
        orders = [result["order"] for result in results]
        again = replay(job_of(case).training, Cluster(), orders, servers=strategy.servers)
        lockstep = len(strategy.lockstep_groups(size)) == 1
        found[case] = {
            "consensus": sorted({result["consensus"] for result in results}),
            "replayed": digest(again.consensus),
            "simulated": digest(run_simulated(job_of(case), size).consensus[-1]) if lockstep else None,
            "devices": [result["device"] for result in results],
            "touched": [result["touched"] for result in results],
        }
    return found


def count_steps(runtime: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the size of the vector and what a step in the steady state costs, at most and in all."""
    import stand_in_device

    task = {"hidden": [64, 64], "features": 32, "frames_per_epoch": 3200}
    job = tiny_job(find(settings["strategy"])(**settings["more"]), minibatches=120, task=task, device="stand_in")
    training = job.training(runtime)
    nbytes = training.learner.weights.nbytes
    stand_in_device.count_allocations_from(nbytes)
    seen: list[dict[str, int]] = []
    training.observers.append(Watching(lambda learner, step: seen.append(stand_in_device.counts())))
    runtime.run(training.run())
    seen = seen[WARM_STEPS:-2]  # the budget's end is no steady state
    each = [{name: b[name] - a[name] for name in a} for a, b in itertools.pairwise(seen)]
    return {
        "vector": nbytes,
        "steps": len(each),
        "most": {name: max(step[name] for step in each) for name in each[0]},
        "total": {name: sum(step[name] for step in each) for name in each[0]},
    }


def counted(strategy: str, more: dict[str, Any], learners: int) -> list[dict[str, Any]]:
    """Count what a step of a strategy costs on processes, by learner."""
    return launcher.run(entry("count_steps"), {"strategy": strategy, "more": more}, size=learners)


def kill(runtime: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Train one learner of several; the second kills itself in the middle of a step."""
    job = tiny_job(find(settings["strategy"])(**settings["more"]), minibatches=400, device="stand_in")
    training = job.training(runtime)
    times: list[tuple[int, float]] = []

    def stepped(learner: Any, step: Any) -> None:
        times.append((training.member.generation, time.monotonic()))
        if runtime.process.initial_rank == 1 and len(times) == 30:
            os.kill(os.getpid(), signal.SIGKILL)

    training.observers.append(Watching(stepped))
    consensus = runtime.run(training.run())
    gaps = [b[1] - a[1] for a, b in itertools.pairwise(times) if a[0] != b[0]]
    return {"consensus": digest(consensus), "gaps": gaps, "threads": threading.active_count()}


def killed(strategy: str, more: dict[str, Any], learners: int) -> list[dict[str, Any] | None]:
    """Train on processes of which one is killed; return what each returned."""
    return launcher.run(entry("kill"), {"strategy": strategy, "more": more}, size=learners)


def choices(asked: list[str]) -> list[str]:
    """Return the device of each setting, or why there is none."""
    found = []
    for each in asked:
        try:
            found.append(str(choose_device(each)))
        except RoundelayError as error:
            found.append(str(error))
    return found


def every_verb(runtime: Any, settings: dict[str, Any]) -> str:
    """Check every verb of a communicator on tensors of the device."""
    device = choose_device(settings["device"])
    use_device(device)
    with device:  # tensors are made there
        return str(getattr(operation_jobs, settings["check"])(runtime, {"exact": True, "rounds": 3}))


def verbs(size: int, check: str = "check_all", device: str = "stand_in") -> list[str] | str:
    """Check every verb on processes; return the kind of communicator of each, or what was raised."""
    try:
        return launcher.run(entry("every_verb"), {"device": device, "check": check}, size=size)
    except RoundelayError as error:
        return str(error)


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    sys.stdout.write(json.dumps(globals()[name](*arguments)) + "\n")
    sys.stdout.flush()
