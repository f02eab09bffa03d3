"""What two processes run to be compared with torch's own DistributedDataParallel, and a test of overlapping verbs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent))  # learners are started without pytest's path

from roundelay.learner import Learner
from roundelay.strategies import STRATEGIES, Averaging
from roundelay.strategies.synchronous import Synchronous
from tiny_jobs import adamw, sgd, tiny_job

OPTIMIZERS = {"sgd": sgd(0.05, 0.9), "adamw": adamw()}


def entry(name: str) -> str:
    """Name a function of this file for a launcher."""
    return f"{Path(__file__).resolve()}:{name}"


def beside_ddp(runtime: Any, settings: dict[str, Any]) -> float:
    """Train by ``synchronous`` and by DDP on the same minibatches; return the largest difference, relatively."""
    steps, make = 200, OPTIMIZERS[settings["optimizer"]]
    job = tiny_job(Synchronous(bucket_bytes=settings["bucket_bytes"]), minibatches=2 * steps, optimizer=make)
    training = job.training(runtime)
    consensus = runtime.run(training.run())
    rank = training.learner.index
    dist.init_process_group("gloo", init_method=f"file://{settings['meet']}", rank=rank, world_size=2)
    module = job.task.make_module()
    peer = DistributedDataParallel(module)
    optimizer = make(peer)
    for step in range(steps):
        optimizer.zero_grad()
        job.task.loss(peer, job.task.load(*job.budget.locate(2 * step + rank))).backward()
        optimizer.step()
    dist.barrier()
    del peer  # before its group: in the other order torch sometimes waits for good
    dist.destroy_process_group()
    ours = [place.view(consensus) for place in training.learner.slots]
    theirs = [parameter.detach() for parameter in module.parameters()]
    largest = max(float(tensor.abs().max()) for tensor in theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


def beside_averager(runtime: Any, settings: dict[str, Any]) -> float:
    """Train by ``averaging`` and by torch's averager on the same minibatches; return the largest difference."""
    steps, period, make = 20, settings["period"], OPTIMIZERS["sgd"]
    job = tiny_job(Averaging(period=period), minibatches=2 * steps, optimizer=make)
    training = job.training(runtime)
    runtime.run(training.run())
    rank = training.learner.index
    dist.init_process_group("gloo", init_method=f"file://{settings['meet']}", rank=rank, world_size=2)
    module = job.task.make_module()
    optimizer, averager = make(module), PeriodicModelAverager(period=period, warmup_steps=settings["warmup_steps"])
    for step in range(steps):
        optimizer.zero_grad()
        job.task.loss(module, job.task.load(*job.budget.locate(2 * step + rank))).backward()
        optimizer.step()
        averager.average_parameters(module.parameters())
    dist.barrier()
    dist.destroy_process_group()
    ours = [place.view(training.learner.weights) for place in training.learner.slots]
    theirs = [parameter.detach() for parameter in module.parameters()]
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def train_tiny(runtime: Any, strategy: str) -> list[float]:
    """Train 200 minibatches; return the consensus."""
    job = tiny_job(STRATEGIES[strategy](), minibatches=200, optimizer=OPTIMIZERS["sgd"])
    consensus: list[float] = runtime.run(job.training(runtime).run()).tolist()
    return consensus


def overlapping(runtime: Any, sizes: list[int]) -> list[str]:
    """Begin a mean, let a gather overtake it, and see that both are right; return what was wrong."""
    learner, wrong = Learner(nn.Linear(3, 2)), list[str]()

    async def run() -> None:
        await runtime.rendezvous(learner, {}, lambda reports, _: {})
        comm = learner.comm
        for turn in range(60):
            x = torch.full((sizes[0],), float(comm.rank + turn))
            mean = comm.mean(x)
            gathered = comm.gather(torch.full((sizes[1],), comm.rank + 1, dtype=torch.uint8))
            if [int(other[-1]) for other in await gathered] != list(range(1, comm.size + 1)):
                wrong.append(f"gather {turn}")
            await mean
            if not torch.allclose(x, torch.full_like(x, (comm.size - 1) / 2 + turn)):
                wrong.append(f"mean {turn}: {x[0]}")
        await comm.mean(torch.zeros(1))
        await runtime.stop_serving(learner)

    runtime.run(run())
    return wrong
