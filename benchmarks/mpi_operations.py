"""Operations under MPI against another checkout's: mpiexec -n 2 python benchmarks/mpi_operations.py OTHER/src [ROUNDS].

Both run in the same ranks, a block of calls of each in turn, so that whatever else the machine does hits both alike.
Each line has the median over rounds of (our time / the other's), its quartiles, and the same of processor time.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor, nn

WORLD = MPI.COMM_WORLD
RIGHT, LEFT = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
FACTOR = torch.randn(200, 200)


class Side:
    """One checkout: its runtime, communicator and learner on this rank."""

    def __init__(self, folder: str | None) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "roundelay"]:
            del sys.modules[name]
        if folder is not None:
            sys.path.insert(0, folder)
        runtimes = importlib.import_module("roundelay.runtimes.mpi.mpi_runtime")
        strategy: Any = importlib.import_module("roundelay.strategy").Strategy
        self.learner: Any = importlib.import_module("roundelay.learner").Learner(nn.Linear(2, 2))
        self.runtime: Any = runtimes.runtime(None)
        self.run(self.runtime.rendezvous(self.learner, {}, lambda reports, safe: {}))
        echo = type("Echo", (strategy,), {"serve": lambda self, learner, theirs, source: theirs})
        self.runtime.start_serving(self.learner, echo())
        self.comm: Any = self.learner.comm
        if folder is not None:
            sys.path.remove(folder)

    def run(self, work: Any) -> Any:
        """Run a coroutine to its end."""
        return self.runtime.run(work)

    async def barrier(self) -> None:
        """Wait for all ranks."""
        await self.comm.mean(torch.zeros(1))

    def compute(self, seconds: float) -> None:
        """Compute; requests are served meanwhile."""
        end = time.perf_counter() + seconds
        with self.runtime.computing(self.learner):
            while time.perf_counter() < end:
                torch.mm(FACTOR, FACTOR)


@dataclass
class Case:
    """One operation, called several times by all ranks, or by one rank while others wait or compute."""

    operation: Callable[[Any, Tensor], Awaitable[Any]]
    numel: int
    calls: int
    asking: int | None = None
    """The only rank that calls; its own time counts."""
    computing: int | None = None
    """The rank that computes meanwhile; -1 if all do, between call and await."""

    async def run(self, side: Side, x: Tensor) -> float:
        """Call the operation; return the seconds until all have done so, or those of the one that asks."""
        begin = time.perf_counter()
        if self.computing == WORLD.rank:
            side.compute(0.05)
        elif self.asking in (None, WORLD.rank):
            for _ in range(self.calls):
                pending = self.operation(side.comm, x)
                if self.computing == -1:
                    side.compute(0.004)
                await pending
        seconds = time.perf_counter() - begin
        await side.barrier()
        return time.perf_counter() - begin if self.asking is None else seconds if self.asking == WORLD.rank else 0.0


def _request(comm: Any, x: Tensor) -> Awaitable[Tensor]:
    return comm.request(x, RIGHT)  # type: ignore[no-any-return]  # of one of two checkouts


def _exchange(comm: Any, x: Tensor) -> Awaitable[Tensor]:
    return comm.exchange(x, RIGHT, LEFT)  # type: ignore[no-any-return]


def _mean(comm: Any, x: Tensor) -> Awaitable[Tensor]:
    return comm.mean(x)  # type: ignore[no-any-return]


def _gather(comm: Any, x: Tensor) -> Awaitable[list[Tensor]]:
    return comm.gather(x)  # type: ignore[no-any-return]


def _broadcast(comm: Any, x: Tensor) -> Awaitable[Tensor]:
    return comm.broadcast(x, 0)  # type: ignore[no-any-return]


CASES = {
    "request 4 kB": Case(_request, 1000, 40),
    "request 1 MB": Case(_request, 250_000, 10),
    "request 16 MB": Case(_request, 4_000_000, 2),
    "request 4 kB to one who waits": Case(_request, 1000, 40, asking=0),
    "request 4 kB to one who computes": Case(_request, 1000, 40, asking=0, computing=1),
    "request 1 MB to one who computes": Case(_request, 250_000, 8, asking=0, computing=1),
    "request 1 MB while all compute": Case(_request, 250_000, 4, computing=-1),
    "exchange 4 kB": Case(_exchange, 1000, 40),
    "exchange 1 MB": Case(_exchange, 250_000, 10),
    "exchange 16 MB": Case(_exchange, 4_000_000, 2),
    "mean 4 B": Case(_mean, 1, 40),
    "mean 4 kB": Case(_mean, 1000, 40),
    "mean 4 MB": Case(_mean, 1_000_000, 6),
    "mean 40 MB": Case(_mean, 10_000_000, 1),
    "mean 1 MB while all compute": Case(_mean, 250_000, 4, computing=-1),
    "gather 4 kB": Case(_gather, 1000, 40),
    "gather 1 MB": Case(_gather, 250_000, 10),
    "broadcast 4 MB": Case(_broadcast, 1_000_000, 6),
}


def measure(case: Case, sides: list[Side], rounds: int) -> str:
    """Return one line: our median time, and ours over the other's."""
    x, walls, processors, ours = torch.ones(case.numel), [], [], []
    for turn in range(rounds + 1):
        wall, processor = [0.0, 0.0], [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            sides[which].run(sides[which].barrier())
            used = time.process_time()
            wall[which] = WORLD.allreduce(sides[which].run(case.run(sides[which], x)), MPI.MAX)
            processor[which] = WORLD.allreduce(time.process_time() - used, MPI.SUM)
        if turn:  # the first is a warm-up
            walls.append(wall[0] / wall[1])
            processors.append(processor[0] / processor[1])
            ours.append(wall[0] / case.calls)
    low, median, high = statistics.quantiles(walls, n=4)
    return (
        f"{1e3 * statistics.median(ours):8.3f} ms  {median:.2f} ({low:.2f} to {high:.2f})  "
        f"processor {statistics.median(processors):.2f}"
    )


def main() -> None:
    """Measure all."""
    torch.set_num_threads(1)
    other = Side(sys.argv[1])
    sides = [Side(None), other]
    for name, case in CASES.items():
        line = measure(case, sides, int(sys.argv[2]) if len(sys.argv) > 2 else 30)
        if WORLD.rank == 0:
            print(f"{name:34s} {line}", flush=True)
    for side in sides:
        side.run(side.runtime.stop_serving(side.learner))
        side.runtime.finish()


if __name__ == "__main__":
    main()
