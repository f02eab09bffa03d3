"""Compare ``synchronous`` on 2 processes with torch DDP: python benchmarks/ddp.py [ROUNDS].

Both train in the same two processes, a few steps in turn, so that other load on the machine affects both equally.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))

from models import MODELS, sgd
from ratios import ratio, show
from roundelay.strategies.synchronous import Synchronous
from roundelay.training.budget import Budget
from roundelay.training.loop import Job

STEPS = 3  # of each in turn


def learner(runtime: Any, settings: dict[str, Any]) -> dict[str, list[float]]:
    """Train in one of the two processes."""
    task = MODELS[settings["model"]]
    training = Job(task, Synchronous(bucket_bytes=settings["bucket_bytes"]), Budget(10**9, 10**9), sgd).training(
        runtime
    )
    runtime.run(training.participation.rendezvous())
    rank, size = training.learner.index, training.member.num_learners
    dist.init_process_group("gloo", init_method=f"file://{settings['meet']}", rank=rank, world_size=size)
    modules = [DistributedDataParallel(task.make_module())]
    optimizer = sgd(modules[0])

    def peer() -> None:
        for number in range(STEPS):
            optimizer.zero_grad()
            loss = task.loss(modules[0], task.load(0, number))
            loss.backward()
            optimizer.step()
            loss.item()

    async def minibatches() -> None:
        for _ in range(STEPS):
            claim = await training.participation.agenda.claim()
            assert claim is not None
            await training.train(claim)

    ways = {"ddp": peer, "ours": lambda: runtime.run(minibatches())}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(settings["rounds"] + 2):
        for name in sorted(ways, reverse=bool(turn % 2)):
            dist.barrier()
            begin = time.perf_counter()
            ways[name]()
            dist.barrier()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - begin)
    modules.clear()  # before their group: in the other order torch sometimes waits for good
    dist.destroy_process_group()
    return seconds


def main() -> None:
    from roundelay.runtimes.processes import launcher as launch

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for model in MODELS:
        for bucket_bytes in (0, 4_000_000):
            with tempfile.TemporaryDirectory() as folder:
                settings = {"model": model, "rounds": rounds, "meet": f"{folder}/meet", "bucket_bytes": bucket_bytes}
                found = launch.run(f"{__file__}:learner", settings, size=2)[0]
            how = f"buckets of {bucket_bytes / 1e6:g} MB" if bucket_bytes else "one piece"
            show(f"synchronous / DDP, 2 processes, {model}, {how}", ratio(found["ddp"], found["ours"]), 1.0)


if __name__ == "__main__":
    main()
