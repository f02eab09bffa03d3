"""How long results of a communicator are valid, checked alike on every runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.learner import Learner
from roundelay.strategy import Strategy

ROUNDS = 6
SIZES = (5, 40_000)  # in the header and beside it, where that differs


class Echo(Strategy):
    """Replies with what it was sent."""

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        return theirs


class _Kind:
    """One operation whose results are lent, and what it returns if rank r sends 100 r + k."""

    def __init__(self, comm: Communicator, begin: Callable[[Tensor], Awaitable[Any]], ranks: list[int]) -> None:
        self.comm, self._begin, self._ranks = comm, begin, ranks

    def begin(self, k: int, numel: int) -> tuple[Tensor, Awaitable[Any]]:
        x = torch.full((numel,), 100.0 * self.comm.rank + k)
        return x, self._begin(x)

    def check(self, result: Tensor | list[Tensor], k: int) -> None:
        tensors = result if isinstance(result, list) else [result]
        assert [set(tensor.tolist()[:5]) for tensor in tensors] == [{100.0 * rank + k} for rank in self._ranks]


async def check_results(comm: Communicator) -> None:
    """Check `gather`, `exchange` and `request`; all ranks call this while `Echo` serves, or a strategy like it."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    gather = _Kind(comm, comm.gather, list(range(comm.size)))
    copied = [
        gather,
        _Kind(comm, lambda x: comm.exchange(x, right, left), [left]),
        _Kind(comm, lambda x: comm.request(x, right), [comm.rank]),
    ]
    blank = [
        gather,
        _Kind(comm, lambda x: comm.exchange(comm.blank(x).copy_(x), right, left), [left]),
        _Kind(comm, lambda x: comm.request(comm.blank(x).copy_(x), right), [comm.rank]),
    ]
    for index in range(ROUNDS):
        kinds = blank if index % 2 else copied
        for kind in kinds:
            for numel in SIZES:
                await _check(kind, [other for other in kinds if other is not kind], 10 * index, numel)
    await comm.mean(torch.zeros(1))  # all replies are there: MPI's split does not serve while it waits


async def _check(kind: _Kind, others: list[_Kind], k: int, numel: int) -> None:
    x, pending = kind.begin(k, numel)
    result = await pending
    x.fill_(-1.0)
    kind.check(result, k)  # it shares no memory with what we gave
    for other in others:  # nor is it touched by other operations
        await other.begin(k + 1, numel)[1]
        await kind.comm.mean(torch.zeros(numel))
    kind.check(result, k)
    first, second = kind.begin(k + 2, numel)[1], kind.begin(k + 3, numel)[1]
    await kind.comm.mean(torch.zeros(1))  # completes what was begun before it
    third = kind.begin(k + 4, numel)[1]
    results = [await second, await third, await first]
    for number, result in zip((k + 3, k + 4, k + 2), results, strict=True):
        kind.check(result, number)  # none of those begun before the first await is overwritten


async def check_dropped_groups(comm: Communicator, rounds: int) -> None:
    """Exchange in groups that are forgotten with their results: these must not block later messages."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for k in range(rounds):
        group = comm.split([list(range(comm.size))])
        assert float((await group.exchange(torch.tensor([float(k)]), right, left))[0]) == k
