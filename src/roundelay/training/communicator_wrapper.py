"""A communicator whose verbs are watched: something happens when each has been awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from torch import Tensor

from roundelay.communicator import Communicator


class WrappedCommunicator:
    """``comm`` with each verb's awaitable wrapped by ``wrap``, in all groups that are split off it too."""

    def __init__(self, comm: Communicator, wrap: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        self._comm, self._wrap = comm, wrap
        self.rank, self.size = comm.rank, comm.size

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the weighted mean."""
        return self._wrap(self._comm.mean(x, weight))

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Everyone's ``x``."""
        return self._wrap(self._comm.gather(x))

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``root``'s ``x`` into everyone's."""
        return self._wrap(self._comm.broadcast(x, root))

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send to one rank, receive from another."""
        return self._wrap(self._comm.exchange(x, to, source))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Have ``to`` serve our ``x``."""
        return self._wrap(self._comm.request(x, to))

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Make the communicator of the group we are in."""
        return WrappedCommunicator(self._comm.split(groups), self._wrap)
