"""Runs that are stopped at some moment and resumed, in the simulator of this process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roundelay.runs.record import Record
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, SimulationOutcome, simulate
from roundelay.strategy import Strategy
from roundelay.training.checkpoint_files import Saver
from roundelay.training.loop import Job, Training
from roundelay.training.training_settings import CheckpointSettings
from tiny_jobs import Watching, sgd, tiny_job

BY_FRAMES = CheckpointSettings(every_frames=1)  # how many is the budget's business
UNEVEN = Cluster(compute=Compute(jitter=0.5, slowness=[1.0, 1.0, 2.0, 0.3]), intra_node=NetworkLink(0.01, 1e5))


class Stopped(Exception):
    """The run was stopped here."""


def job_of(strategy: Strategy, **settings: Any) -> Job:
    """Return a job that meets often, at points that divide by nothing, with momentum, batch norm and dropout."""
    budget = {"evaluate_every": 17, "checkpoint_every": 7, "warmup": 8} | settings.pop("budget", {})
    job = tiny_job(
        strategy, budget=budget, optimizer=sgd(0.05, 0.9), task={"batch_norm": True, "dropout": 0.1}, **settings
    )
    job.checkpoint = BY_FRAMES
    return job


def run_in(
    folder: Path,
    job: Job,
    learners: int,
    *,
    stop: int | None = None,
    shuffle: int | None = None,
    watch: Callable[[Training], None] | None = None,
) -> SimulationOutcome[Training]:
    """Run ``job``, from the newest checkpoint in ``folder`` if there is one; stop it after so many steps of all."""
    assert job.checkpoint is not None
    job.saver, steps = Saver(folder, job.checkpoint), 0

    def stepped(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == stop:
            raise Stopped

    def make(runtime: SimulatedRuntime) -> Training:
        training = job.training(runtime)
        training.observers.append(Watching(stepped))
        if watch is not None:
            watch(training)
        return training

    record = Record(folder / "record.jsonl", clock="virtual")
    try:
        return simulate(
            make, UNEVEN, learners=learners, servers=job.strategy.servers, seed=3, record=record, shuffle=shuffle
        )
    finally:
        job.saver.close()
        record.abandon()


def kill_in(folder: Path, strategy: Strategy, learners: int, seconds: float) -> bool:
    """Run it in a process of its own, and kill that by SIGKILL after so many seconds; say whether it still ran."""
    process = os.fork()
    if process == 0:
        try:
            run_in(folder, job_of(strategy), learners)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)  # it may have ended, but is still ours to wait for
    _, status = os.waitpid(process, 0)
    return os.WIFSIGNALED(status)


def events(folder: Path, *but: str) -> list[dict[str, Any]]:
    """Return the record, but for these events and those that tell of resuming."""
    lines = (folder / "record.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] not in ("resumed", "damaged", *but)]
