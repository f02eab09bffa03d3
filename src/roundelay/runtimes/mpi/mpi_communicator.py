"""The communicator under MPI: operations, groups, and requests that a peer serves."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Awaitable, Sequence

import numpy as np
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.errors import Mismatch
from roundelay.runtimes.blocking import Settled
from roundelay.runtimes.messages import CollectiveCall, Kind
from roundelay.runtimes.mpi.collectives import Broadcast, Gather, Group, Mean
from roundelay.runtimes.session import PointToPoint

MAX_KEPT_GROUPS = 62  # of one partition: one bit each in one integer


class MpiCommunicator(PointToPoint):
    """A communicator over MPI; collectives of a group use an MPI communicator of its own."""

    def __init__(self, group: Group, members: Sequence[int], path: str = "world") -> None:
        super().__init__(group.transport.session, members, path)
        self._group, self._transport = group, group.transport
        self._groups: dict[tuple[tuple[int, ...], ...], list[_Kept]] = {}

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the weighted mean."""
        if self.size == 1:
            return Settled(x)
        return self._transport.begin(Mean(self._group, self._call("mean", x, weight), x))

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Return ``x`` of all ranks."""
        if self.size == 1:
            return Settled([x.clone()])
        self._reclaim_results(Kind.GATHER)
        return self._transport.begin(Gather(self._group, self._call("gather", x), x, self._lent))

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``x`` of rank ``root`` into ``x`` of all ranks."""
        if self.size == 1:
            return Settled(x)
        return self._transport.begin(Broadcast(self._group, self._call("broadcast", x, root), x))

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Return the communicator of our group.

        The same partitions come again in each interval, and MPI has a limited number of communicators: one that no rank
        uses any more is used again.
        """
        partition = tuple(tuple(group) for group in groups)
        index = next((k for k, ranks in enumerate(partition) if self.rank in ranks), None)
        if index is None:
            raise Mismatch(f"rank {self.rank} is in none of the groups {partition}")
        mine, kept = partition[index], self._groups.setdefault(partition, [])
        unused = self._agree_on_unused(partition, kept)
        if unused is None:
            with self._transport.lock:
                kept.append(_Kept(Group(self._transport, self._group.comm.Split(index, mine.index(self.rank)))))
        chosen = kept[-1 if unused is None else unused]
        self._splits += 1
        members = [self.members[rank] for rank in mine]
        made = MpiCommunicator(chosen.group, members, f"{self.path}/{self._splits}.{index}")
        chosen.user = weakref.ref(made)
        return made

    @property
    def num_kept_groups(self) -> int:
        """Number of MPI communicators that splits have made."""
        return sum(len(kept) for kept in self._groups.values())

    def _agree_on_unused(self, partition: tuple[tuple[int, ...], ...], kept: list[_Kept]) -> int | None:
        digest = int.from_bytes(hashlib.blake2b(repr(partition).encode(), digest_size=7).digest(), "big")
        unused = sum(1 << k for k, each in enumerate(kept[:MAX_KEPT_GROUPS]) if each.user() is None)
        mine, everyone = np.array([digest, unused], np.int64), np.empty((self.size, 2), np.int64)
        with self._transport.lock:
            request = self._group.comm.Iallgather(mine, everyone)
        self._transport.finish(request)
        other = next((rank for rank in range(self.size) if everyone[rank, 0] != digest), None)
        if other is not None:
            raise Mismatch(f"split: rank {other} gave other groups than rank {self.rank}, which gave {partition}")
        common = int(np.bitwise_and.reduce(everyone[:, 1]))
        return (common & -common).bit_length() - 1 if common else None

    def _call(self, operation: str, x: Tensor, argument: float = 0.0) -> CollectiveCall:
        # The bytes of the ring algorithm, whatever MPI does, so that runtimes can be compared.
        share = {"mean": 2 * (self.size - 1) / self.size, "gather": self.size - 1, "broadcast": 1.0}[operation]
        self.session.recorder.count_bytes(x.nbytes * share)
        return CollectiveCall.of(operation, x, argument)


class _Kept:
    """A group that a split has made, and the communicator that uses it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.user: weakref.ref[MpiCommunicator]
