"""The operations by which learners communicate; every runtime has its own communicator."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Communicator(Protocol):
    """Five operations and a way to make smaller groups.

    An operation starts at once and returns an awaitable; await it where you need the result, within the same step.
    `mean`, `gather` and `broadcast` are collectives: every rank of the group calls them, in the same order.  A
    collective works in place: do not use its tensor before the await; if it raises, the tensor is unchanged.
    `exchange`, `request` and the root of `broadcast` copy their tensor at once: it may change right after the call.

    Results of `gather`, `exchange` and `request` belong to the communicator: read them, do not write to them, and use
    them only while you keep it and until the next operation of that kind begins on it.  They never share memory with
    the tensor given.

    To save the copy of what is sent, compute it in memory that `blank` returns.

    Sums are taken in rank order wherever the runtime has the choice, so that runtimes agree to the bit.
    """

    @property
    def rank(self) -> int:
        """Our rank in the group, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks in the group."""

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Weighted all-reduce: replace ``x`` by sum(w x) / sum(w); unchanged if all weights are 0."""

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """All-gather: return ``x`` of all ranks in rank order; sizes may differ, dtypes may not."""

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``x`` of rank ``root`` into ``x`` of all ranks."""

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to``; return the tensor that rank ``source`` sends us by the same operation."""

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to``, whatever it is doing; return the reply of its strategy's `serve`."""

    def blank(self, like: Tensor) -> Tensor:
        """Return memory of the layout of ``like``, with any contents, for one message.

        What is written there and then given to `request` or `exchange`, or returned by `Strategy.serve`, is not copied:
        do not use it afterwards.
        """

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Return the communicator of our group; every rank gives the same partition, in the same order."""


class DeferredReply:
    """A reply to a request that is sent later, by a later `serve`."""

    def __init__(self) -> None:
        self._reply: Tensor | None = None
        self._send: Callable[[Tensor], None] | None = None

    def send(self, reply: Tensor) -> None:
        """Send the reply now."""
        self._reply = reply
        if self._send is not None:
            self._send(reply)

    def on_send(self, send: Callable[[Tensor], None]) -> None:
        """Call ``send`` with the reply as soon as there is one; for runtimes."""
        self._send = send
        if self._reply is not None:
            send(self._reply)


async def gather_json(comm: Communicator, value: Any) -> list[Any]:
    """Return ``value`` of all ranks, in rank order."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    return [json.loads(bytes(other.tolist())) for other in await comm.gather(data)]
