"""Counters of all ranks, in a window of rank 0's memory; adding needs no action of rank 0."""

from __future__ import annotations

import hashlib

import numpy as np
from mpi4py import MPI

from roundelay.errors import CommunicationError
from roundelay.runtimes.mpi.mpi_transport import MpiTransport, Operation

SLOTS = 1 << 16  # of 16 bytes; a run has one key per interval


class Counter:
    """A hash table in rank 0's memory: each slot has a key's digest, 0 if it is free, and the key's counter.

    Only with ``Win.Allocate`` under one long ``Lock_all`` do libraries reach the memory of a rank that computes;
    ``Win.Create`` waits for that rank's next MPI call.
    """

    def __init__(self, transport: MpiTransport) -> None:
        self.transport = transport
        self.is_used = False  # whether other ranks may need our progress on the window
        first = transport.world.rank == 0
        self.window = MPI.Win.Allocate(16 * SLOTS if first else 0, 8, comm=transport.world)
        if first:
            np.asarray(self.window.tomemory())[:] = 0
        transport.finish(transport.service.Ibarrier())
        self.window.Lock_all(MPI.MODE_NOCHECK)
        self.window.Sync()
        transport.finish(transport.service.Ibarrier())
        self._slots: dict[str, int] = {}

    def add(self, key: str, amount: int) -> Operation[int]:
        """Start to add; the result is the value before."""
        self.is_used = True
        with self.transport.lock:
            return self.transport.begin(_Addition(self, self._find(key), amount))

    def free(self) -> None:
        """Free the window; every rank calls this."""
        self.window.Unlock_all()
        self.window.Free()

    def _find(self, key: str) -> int:
        """Return the position of the counter of ``key``; take a slot for it if it has none."""
        if key not in self._slots:
            digest = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1 or 1
            mine, free, found = np.array([digest], np.int64), np.zeros(1, np.int64), np.empty(1, np.int64)
            for probe in range(SLOTS):
                slot = (digest + probe) % SLOTS
                self.window.Compare_and_swap(mine, free, found, 0, 2 * slot)
                self.window.Flush(0)
                if found[0] in (0, digest):
                    self._slots[key] = 2 * slot + 1
                    break
            else:
                raise CommunicationError(f"more than {SLOTS} counters; evaluate or save less often")
        return self._slots[key]


class _Addition(Operation[int]):
    """An addition under way."""

    def __init__(self, counter: Counter, position: int, amount: int) -> None:
        super().__init__(counter.transport)
        self._amount, self._before = np.array([amount], np.int64), np.empty(1, np.int64)
        self._request = counter.window.Rget_accumulate(self._amount, self._before, 0, position, MPI.SUM)

    def advance(self) -> bool:
        """Return whether the value has arrived."""
        return self._request.Test()

    def result(self) -> int:
        """Return the value before."""
        return int(self._before[0])
