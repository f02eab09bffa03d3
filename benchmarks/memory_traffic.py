"""Count the bytes that a step of a strategy moves in memory: python benchmarks/memory_traffic.py [STRATEGY ...].

The strategies run in the simulator, on a vector far larger than the cache.  Every tensor operation of `overlap`, of the
snapshot, of `serve` and of `step` is seen, and its operands go through a model of a cache of 1 MB: what is not in it is
read from memory, and what was written goes back there when it leaves.  The gradient itself is not counted.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parent))

from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import simulate
from roundelay.strategies import STRATEGIES
from roundelay.strategy import Strategy
from roundelay.task import Task
from roundelay.training.budget import Budget
from roundelay.training.loop import Job

BLOCK, CACHE_BYTES, VECTOR_BYTES = 1 << 14, 1 << 20, 8 << 20
GOSSIP = ("adpsgd", "adpsgd-random", "adpsgd-pairwise", "dpsgd", "sgp", "easgd", "delay-by-one", "synchronous")


class Cache:
    """A cache that forgets what was used least recently."""

    def __init__(self) -> None:
        self.read = self.written = 0
        self._blocks: OrderedDict[int, bool] = OrderedDict()  # by address: whether it was written

    def touch(self, x: Tensor, *, write: bool) -> None:
        """Read or write all of a tensor."""
        begin = x.data_ptr()
        for block in range(begin // BLOCK, -(-(begin + x.nbytes) // BLOCK)):
            if block in self._blocks:
                self._blocks.move_to_end(block)
            elif not write:
                self.read += BLOCK
            self._blocks[block] = self._blocks.get(block, False) or write
            if len(self._blocks) > CACHE_BYTES // BLOCK:
                self.written += BLOCK * self._blocks.popitem(last=False)[1]


class Watch(TorchDispatchMode):
    """Let a cache see the operands of every operation."""

    def __init__(self, cache: Cache) -> None:
        super().__init__()
        self._cache = cache

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view and "empty" not in function.name():
            outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
            changed = {x.data_ptr() for x in outputs}
            inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            reads_target = not any(each in function.name() for each in ("copy_", ".out", "zero_", "fill_"))
            for x in inputs:
                if x.data_ptr() not in changed or reads_target:
                    self._cache.touch(x, write=False)
            for x in outputs:
                self._cache.touch(x, write=True)
        return result


class OneVector(nn.Module):
    """A model that is one large vector."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(VECTOR_BYTES // 4))


class ConstantGradient(Task):
    """A task whose gradient takes no work."""

    minibatches_per_epoch, held_out_minibatches, nominal_frames = 10**6, 0, 1

    def __init__(self) -> None:
        self._grad = torch.ones(VECTOR_BYTES // 4)

    def make_module(self) -> nn.Module:
        return OneVector()

    def load(self, epoch: int, index: int) -> None:
        """Load nothing."""

    def gradient(self, learner: Learner, batch: Any) -> float:
        next(iter(learner.module.parameters())).grad = self._grad
        return 0.0


def watched(kind: type[Strategy], cache: Cache) -> type[Strategy]:
    """Return the strategy such that all its operations are seen."""

    def sync(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            with Watch(cache):
                return getattr(kind, name)(self, *args)

        return call

    async def step(self: Any, learner: Learner) -> None:
        work = kind.step(self, learner).__await__()
        while True:  # the mode must not stay on while others run
            try:
                with Watch(cache):
                    awaited = next(work)
            except StopIteration:
                return
            await _Once(awaited)

    return type(f"Watched{kind.__name__}", (kind,), {"overlap": sync("overlap"), "serve": sync("serve"), "step": step})


class _Once:
    def __init__(self, future: Any) -> None:
        self._future = future

    def __await__(self) -> Any:
        yield self._future


def count(name: str, learners: int, steps: int = 3) -> tuple[float, float]:
    """Return how many vectors a learner reads and writes in a step, without the first two steps."""
    totals = []
    for minibatches in (2 * learners, (2 + steps) * learners):
        cache = Cache()
        strategy = watched(STRATEGIES[name], cache)()
        job = Job(
            ConstantGradient(), strategy, Budget(10**6, minibatches), lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
        )
        take = Learner.take_snapshot

        def take_snapshot(self: Learner, take: Callable[[Learner], None] = take, cache: Cache = cache) -> None:
            with Watch(cache):
                take(self)

        Learner.take_snapshot = take_snapshot  # type: ignore[method-assign]
        simulate(job.training, Cluster(), learners=learners, servers=strategy.servers)
        Learner.take_snapshot = take  # type: ignore[method-assign]
        totals.append((cache.read, cache.written))
    whole = steps * learners * VECTOR_BYTES
    return tuple((b - a) / whole for a, b in zip(*totals, strict=True))  # type: ignore[return-value]


def main() -> None:
    print(f"{'strategy':18s} {'learners':>8s} {'read':>6s} {'written':>8s} {'vectors per learner and step':>30s}")
    for name in sys.argv[1:] or GOSSIP:
        for learners in (2, 4):
            read, written = count(name, learners)
            print(f"{name:18s} {learners:8d} {read:6.2f} {written:8.2f} {read + written:30.2f}", flush=True)


if __name__ == "__main__":
    main()
