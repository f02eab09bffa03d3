"""A communicator around another one, which wraps what its operations return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from torch import Tensor

from roundelay.communicator import Communicator


class WrappedCommunicator:
    """``comm`` with the awaitable of each operation wrapped by ``wrap``, also in groups that are split off."""

    def __init__(self, comm: Communicator, wrap: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self._comm, self._wrap = comm, wrap
        self.rank, self.size = comm.rank, comm.size

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the weighted mean."""
        return self._wrap(self._comm.mean(x, weight))

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Return the ``x`` of every rank."""
        return self._wrap(self._comm.gather(x))

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy the ``x`` of rank ``root`` to all ranks."""
        return self._wrap(self._comm.broadcast(x, root))

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send ``x`` to one rank and return what another sent."""
        return self._wrap(self._comm.exchange(x, to, source))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to`` and return its reply."""
        return self._wrap(self._comm.request(x, to))

    def blank(self, like: Tensor) -> Tensor:
        """Return memory for one message."""
        return self._comm.blank(like)

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Return the communicator of our group."""
        return WrappedCommunicator(self._comm.split(groups), self._wrap)
