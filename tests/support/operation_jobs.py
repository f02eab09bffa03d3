"""Every operation of a communicator, checked from inside learners' processes; an entry for `launcher.run`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from result_validity import check_dropped_groups, check_results
from roundelay.communicator import Communicator, DeferredReply
from roundelay.learner import Learner
from roundelay.runtimes.processes.process_runtime import ProcessRuntime
from roundelay.runtimes.weighted_mean import mean_of
from roundelay.strategy import Strategy


def entry(name: str) -> str:
    """Name a function of this file for `launcher.run`."""
    return f"{Path(__file__).resolve()}:{name}"


def tensor_of(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor that every learner can make for every rank."""
    generator = torch.Generator().manual_seed(31 * rank + numel)
    return torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype)


@dataclass
class Echo(Strategy):
    """Answers with what it was sent and who sent it."""

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        return torch.cat([theirs, theirs.new_tensor([float(source)])])


class Pairing(Strategy):
    """Answers two requests at a time, each with the sum of both."""

    first: tuple[Tensor, DeferredReply] | None = None

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        if self.first is None:
            self.first = theirs.clone(), DeferredReply()
            return self.first[1]
        held, later = self.first
        self.first = None
        later.send(held + theirs)
        return held + theirs


async def enter(runtime: ProcessRuntime) -> Learner:
    """Become a learner with a communicator."""
    learner = Learner(nn.Linear(2, 2))
    view = await runtime.rendezvous(
        learner, {"mine": runtime.process.initial_rank}, lambda reports, safe: {"reports": list(reports)}
    )
    assert (view.generation, view.rank) == (0, runtime.process.initial_rank)
    assert [report["mine"] for report in view.plan["reports"]] == list(range(view.size))
    return learner


async def check_means(comm: Communicator, *, exact: bool) -> None:
    everyone = range(comm.size)
    for numel in (1, 7, 1000, 400_000):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for weights in (
                [1.0] * comm.size,
                [0.3 + rank for rank in everyone],
                [float(rank == 0) for rank in everyone],
            ):
                xs = [tensor_of(rank, numel, dtype) for rank in everyone]
                x = xs[comm.rank].clone()
                result = await comm.mean(x, weights[comm.rank])
                expected = mean_of(xs, weights)
                assert result is x
                assert expected is not None
                if exact:
                    assert torch.equal(x, expected), (numel, dtype, weights)
                else:
                    torch.testing.assert_close(x, expected, rtol=0, atol=0.07 if dtype == torch.bfloat16 else 1e-6)
    x = tensor_of(comm.rank, 5)
    assert torch.equal(await comm.mean(x, 0.0), tensor_of(comm.rank, 5)), "all weights 0"
    x = torch.full((6, 4), float("nan") if comm.rank else 2.0)
    assert torch.equal(await comm.mean(x, float(comm.rank == 0)), torch.full((6, 4), 2.0)), (
        "weight 0 of what is not finite"
    )
    x = torch.full((6, 4), float(comm.rank))[:, ::2]
    await comm.mean(x)
    assert torch.equal(x, torch.full((6, 2), (comm.size - 1) / 2)), "not contiguous"


async def check_order(comm: Communicator) -> None:
    """Many collectives under way, awaited in any order."""
    xs = [torch.full((1000 + k,), float(comm.rank + k)) for k in range(300)]
    started = [comm.mean(x) for x in xs]
    for k in reversed(range(300)):
        await started[k]
        assert float(xs[k][0]) == k + (comm.size - 1) / 2
    started = [comm.broadcast(xs[k], root=k % comm.size) for k in range(20)]
    for waiting in started:
        await waiting


async def check_gather(comm: Communicator) -> None:
    for dtype in (torch.float32, torch.int64, torch.uint8):
        mine = torch.arange(3 * comm.rank, dtype=dtype)
        for rank, theirs in enumerate(await comm.gather(mine)):
            assert torch.equal(theirs, torch.arange(3 * rank, dtype=dtype))
    shapes = [tuple(theirs.shape) for theirs in await comm.gather(torch.zeros(comm.rank + 1, 2, 3))]
    assert shapes == [(rank + 1, 2, 3) for rank in range(comm.size)]


async def check_broadcast(comm: Communicator) -> None:
    for root in range(comm.size):
        for x in (torch.full((50, 3), comm.rank), torch.tensor(comm.rank % 2 == 0), torch.tensor([1.5 * comm.rank])):
            expected = {2: torch.full((50, 3), root), 0: torch.tensor(root % 2 == 0), 1: torch.tensor([1.5 * root])}
            assert torch.equal(await comm.broadcast(x, root), expected[x.dim()])


async def check_exchange(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    left, right = (rank - 1) % size, (rank + 1) % size
    for turn in range(50):
        x = torch.full((5000 + rank,), float(turn + rank))
        from_left, from_right = comm.exchange(x, right, left), comm.exchange(x[:7], left, right)
        x.zero_()  # it was copied
        a, b = await from_left, await from_right
        assert a.shape == (5000 + left,)
        assert float(a[-1]) == turn + left
        assert torch.equal(b, torch.full((7,), float(turn + right)))
    assert torch.equal(await comm.exchange(x + 1, rank, rank), x + 1), "with oneself"


async def check_requests(runtime: ProcessRuntime, learner: Learner) -> None:
    comm = learner.comm
    halves = [[rank for rank in range(comm.size) if rank % 2 == odd] for odd in (0, 1)]
    half = comm.split([half for half in halves if half])
    if comm.rank == 0:
        time.sleep(0.2)  # requests wait until we let them in
    runtime.start_serving(learner, Echo())
    for group in (comm, half):
        for to in range(group.size):
            asked = [group.request(torch.full((9,), float(k)), to) for k in range(3)]
            for k, waiting in enumerate(asked):
                answer = await waiting
                assert answer.tolist() == [float(k)] * 9 + [float(group.rank)]
    await check_results(comm)
    await comm.mean(torch.zeros(1))
    runtime.start_serving(learner, Pairing())
    await comm.mean(torch.zeros(1))
    if comm.size > 2 and comm.rank in (1, 2):
        assert (await comm.request(torch.tensor([float(comm.rank)]), 0)).tolist() == [3.0]
    await comm.mean(torch.zeros(1))
    first, second = comm.request(torch.ones(1), comm.rank), comm.request(torch.ones(1) * 2, comm.rank)
    assert float(await first) == float(await second) == 3.0, "two requests to oneself, answered together"
    await comm.mean(torch.zeros(1))
    await runtime.stop_serving(learner)


async def check_split(comm: Communicator) -> None:
    pairs = [list(range(k, min(k + 2, comm.size))) for k in range(0, comm.size, 2)]
    pair, same = comm.split(pairs), comm.split([list(range(comm.size))])
    assert (pair.rank, pair.size) == (comm.rank % 2, len(pairs[comm.rank // 2]))
    mine, all_of_us = torch.tensor([float(comm.rank)]), torch.tensor([float(comm.rank)])
    waiting: Sequence[Awaitable[Tensor]] = [same.mean(all_of_us), pair.mean(mine)]
    for each in reversed(waiting):
        await each
    members = pairs[comm.rank // 2]
    assert float(mine) == sum(members) / len(members)
    assert float(all_of_us) == (comm.size - 1) / 2
    single = pair.split([[rank] for rank in range(pair.size)])
    assert float(await single.mean(torch.tensor([7.0]))) == 7.0
    reverse = comm.split([list(reversed(range(comm.size)))])
    assert reverse.rank == comm.size - 1 - comm.rank
    assert [int(x) for x in await reverse.gather(torch.tensor([comm.rank]))] == list(reversed(range(comm.size)))


def check_all(runtime: ProcessRuntime, settings: dict[str, Any]) -> str:
    """Check every verb; any failure raises."""

    async def run() -> str:
        learner = await enter(runtime)
        await check_means(learner.comm, exact=settings["exact"])
        await check_order(learner.comm)
        await check_gather(learner.comm)
        await check_broadcast(learner.comm)
        await check_exchange(learner.comm)
        await check_split(learner.comm)
        await check_dropped_groups(learner.comm, rounds=settings.get("rounds", 300))
        await check_requests(runtime, learner)
        return type(learner.comm).__name__

    return runtime.run(run())


def mismatch(runtime: ProcessRuntime, settings: dict[str, Any]) -> None:
    """Call different collectives."""

    async def run() -> None:
        learner = await enter(runtime)
        await learner.comm.mean(torch.zeros(2))
        await learner.comm.mean(torch.zeros(577 if learner.comm.rank == 0 else 1))

    runtime.run(run())


def reuse(runtime: ProcessRuntime, settings: dict[str, Any]) -> list[int]:
    """Return how much memory is shared after a few and after many steps."""

    async def run() -> list[int]:
        learner = await enter(runtime)
        taken = []
        for _ in range(2):
            for turn in range(40):
                await learner.comm.mean(torch.zeros(100_000))
                await learner.comm.exchange(
                    torch.zeros(50_000 + turn), (learner.comm.rank + 1) % 2, (learner.comm.rank + 1) % 2
                )
                await learner.comm.gather(torch.zeros(10_000 + turn))
            taken.append(learner.comm.transport.arena._top)  # type: ignore[attr-defined]  # a look inside
        return taken

    return runtime.run(run())
