"""Train in loops of one's own on 2 processes, strategy by strategy, in turn with torch's DDP and PostLocalSGD.

    torchrun --nproc-per-node 2 benchmarks/user_loops.py [--batch 256] [--rounds 12] [--only adpsgd,synchronous]

All contenders train in the same processes, a few steps in turn, so that other load on the machine affects all equally.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import roundelay

sys.path.insert(0, str(Path(__file__).parent))

PERIOD = 50
Step = Callable[[], None]


def model() -> nn.Module:
    """440 inputs, 6 layers of 1024, 3000 senones: 35 MB."""
    torch.manual_seed(0)
    widths = [440] + [1024] * 6
    hidden = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(1024, 3000))


def sgd(module: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=0.01)


def endless(batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(batch, 440, generator=generator), torch.randint(3000, (batch,), generator=generator))] * 4
    return itertools.cycle(data)


def loop(module: nn.Module, optimizer: Any, data: Iterator[Any]) -> Step:
    def step() -> None:
        x, y = next(data)
        optimizer.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def alone(batch: int) -> Step:
    module = model()
    return loop(module, sgd(module), endless(batch))


def ddp(batch: int) -> Step:
    module = DistributedDataParallel(model())
    return loop(module, sgd(module), endless(batch))


def post_local_sgd(batch: int) -> Step:
    module = DistributedDataParallel(model())
    state = post_local.PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=0)
    module.register_comm_hook(state, post_local.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(sgd(module), PeriodicModelAverager(period=PERIOD, warmup_steps=0))
    return loop(module, optimizer, endless(batch))


def joined(strategy: roundelay.Strategy) -> Callable[[int], Step]:
    def make(batch: int) -> Step:
        module = model()
        optimizer = sgd(module)
        learner = roundelay.join(module, optimizer, strategy)
        data = iter(learner.share(list(itertools.islice(endless(batch), 4)) * 25_000))
        return loop(module, optimizer, data)

    return make


CONTENDERS: dict[str, Callable[[int], Step]] = {
    "alone": alone,
    "ddp": ddp,
    "post-local-sgd": post_local_sgd,
    "synchronous": joined(roundelay.Synchronous()),
    "delay-by-one": joined(roundelay.DelayByOne()),
    "adpsgd": joined(roundelay.ADPSGD()),
    "bmuf": joined(roundelay.BMUF(block=PERIOD)),
    "averaging": joined(roundelay.Averaging(period=PERIOD)),
    "diloco": joined(roundelay.DiLoCo(block=PERIOD)),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", default=",".join(CONTENDERS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    seconds = measure({name: CONTENDERS[name](options.batch) for name in options.only.split(",")}, options)
    if dist.get_rank() == 0:
        print(json.dumps(seconds))
    sys.stdout.flush()
    import os

    os._exit(0)


def measure(steps: dict[str, Step], options: argparse.Namespace) -> dict[str, list[float]]:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for turn in range(options.rounds + 2):
        for name in sorted(steps, reverse=bool(turn % 2)):
            dist.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            for _ in range(options.steps):
                steps[name]()
            cpu = time.process_time() - cpu
            dist.barrier()
            wall = time.perf_counter() - begin
            both = torch.tensor([cpu])
            dist.all_reduce(both)
            if turn >= 2:
                seconds[name].append((wall, float(both)))
    return seconds


if __name__ == "__main__":
    main()
