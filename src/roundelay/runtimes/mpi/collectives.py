"""Mean, gather and broadcast over MPI; each begins with the calls of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from roundelay.runtimes.messages import CALL_WORDS, Bytes, CollectiveCall, Kind
from roundelay.runtimes.mpi.mpi_transport import MpiTransport, Operation
from roundelay.runtimes.session import Lent
from roundelay.runtimes.weighted_mean import divide

T = TypeVar("T")

INLINE_WORDS = 16  # a tensor that fits is sent with the call: barriers, flags and claims
TAG_PERIOD = 8192  # sequence numbers repeat in tags; MPI guarantees tags up to 32767 only
PIECE, SUM = 0, TAG_PERIOD  # gathered tensors and pieces of a mean; sums


class Group:
    """An MPI communicator for the collectives of one group; their numbers continue when another group reuses it."""

    def __init__(self, transport: MpiTransport, comm: MPI.Comm) -> None:
        assert isinstance(comm, MPI.Intracomm)
        self.transport, self.comm, self.size = transport, comm, comm.size
        self._number = 0

    def next_number(self) -> int:
        """Return the number of a new collective, the same on all ranks."""
        self._number += 1
        return self._number


class Collective(Operation[T]):
    """A collective whose first part is small and fixed in size: the calls of all ranks.

    They tell each rank that all are here, which operation each calls, and a mean's weights in rank order.  Tensors move
    by messages between pairs: MPI's own collectives must all start in one order, which is impossible if a message
    depends on one received before.
    """

    def __init__(self, group: Group, call: CollectiveCall, x: Tensor) -> None:
        super().__init__(group.transport)
        self.comm, self.call, self.x, self.size = group.comm, call, x, x.nbytes
        self.rank, self.others = self.comm.rank, [rank for rank in range(group.size) if rank != self.comm.rank]
        self.calls: list[CollectiveCall] = []
        self._number = group.next_number()
        self._words = np.zeros((group.size, CALL_WORDS + INLINE_WORDS), np.int64)
        self._words[self.rank, :CALL_WORDS] = call.encode()
        self._taken: list[Bytes] = []
        with self.transport.lock:
            self._moves = self.moves()
            self._requests = next(self._moves)
            self._gathering = self.comm.Iallgather(MPI.IN_PLACE, self._words)

    def moves(self) -> Iterator[list[MPI.Request]]:
        """Start to move tensors; after each ``yield`` all calls are known and the yielded requests are done."""
        raise NotImplementedError

    def advance(self) -> bool:
        """Wait for all calls, then for the tensors."""
        if not self.calls:
            if not self._gathering.Test():
                return False
            self.arrived = self.transport.now()
            self.calls = [CollectiveCall.decode(words) for words in self._words[:, :CALL_WORDS].tolist()]
            for rank, theirs in enumerate(self.calls):
                self.call.check(theirs, self._number, rank=self.rank, other=rank)
        while True:
            self._requests = [request for request in self._requests if not request.Test()]
            if self._requests:
                return False
            more = next(self._moves, None)
            if more is None:
                return True
            self._requests = more

    def inline(self, rank: int) -> Tensor:
        """Return the small tensor in a rank's words."""
        return self.call.layout.view(self._words[rank, CALL_WORDS:].view(np.uint8))

    @property
    def is_small(self) -> bool:
        """Whether the tensor is sent with the call."""
        return self.x.nbytes <= 8 * INLINE_WORDS

    def take(self, nbytes: int) -> Bytes:
        """Return memory that belongs to this collective until `release`."""
        self._taken.append(self.transport.buffers.take(nbytes))
        return self._taken[-1][:nbytes]

    def release(self) -> None:
        """Let others reuse what was taken."""
        for buffer in self._taken:
            self.transport.buffers.give(buffer)
        self._taken.clear()

    def send(self, memory: Bytes, to: int, tag: int) -> MPI.Request:
        """Start to send bytes."""
        return self.comm.Isend([memory, memory.size, MPI.BYTE], to, tag + self._number % TAG_PERIOD)

    def receive(self, memory: Bytes, source: int, tag: int) -> MPI.Request:
        """Start to receive bytes."""
        return self.comm.Irecv([memory, memory.size, MPI.BYTE], source, tag + self._number % TAG_PERIOD)


class Mean(Collective[Tensor]):
    """A sum in rank order, so that it equals the simulator's to the bit; MPI's own sum does not promise that.

    Each rank adds one piece of the vector and sends the sum to all.  It sends and receives twice the vector less two
    pieces, as by the ring algorithm.
    """

    def moves(self) -> Iterator[list[MPI.Request]]:
        """Scale; send pieces; add ours; send the sum."""
        layout, size = self.call.layout, self.comm.size
        if self.is_small:
            self._scale_into(self.inline(self.rank))
            yield []
            self._mean = self._add([self.inline(rank) for rank in range(size)], self.inline(self.rank))
            return
        buffer = self.take(layout.nbytes)
        self._mean = layout.view(buffer)
        self._scale_into(self._mean)
        cuts = [self.x.numel() * k // size * layout.dtype.itemsize for k in range(size + 1)]
        pieces = [buffer[a:b] for a, b in pairwise(cuts)]
        mine = pieces[self.rank]
        theirs = {rank: self.take(mine.size) for rank in self.others}
        yield [
            *(self.receive(theirs[rank], rank, PIECE) for rank in self.others),
            *(self.send(pieces[rank], rank, PIECE) for rank in self.others),
        ]
        summands = [torch.from_numpy(theirs.get(rank, mine)).view(layout.dtype) for rank in range(size)]
        self._add(summands, summands[self.rank])
        yield [
            *(self.receive(pieces[rank], rank, SUM) for rank in self.others),
            *(self.send(mine, rank, SUM) for rank in self.others),
        ]

    def result(self) -> Tensor:
        """Copy the mean into ``x``."""
        if any(call.argument for call in self.calls):
            self.x.copy_(self._mean)
        self.release()
        return self.x

    def _scale_into(self, staged: Tensor) -> None:
        weight = self.call.argument
        if weight == 0.0:
            staged.zero_()  # even if x is not finite
        elif weight == 1.0:
            staged.copy_(self.x)
        elif self.x.device.type == "cpu":
            torch.mul(self.x, weight, out=staged)
        else:
            staged.copy_(self.x * weight)

    def _add(self, summands: Sequence[Tensor], into: Tensor) -> Tensor:
        """Add in rank order, in the memory of the first, and divide."""
        weight = sum(call.argument for call in self.calls)
        if not weight:
            return into
        total = summands[0]
        for summand in summands[1:]:
            total.add_(summand)
        divide(total, weight)
        return into if into is total else into.copy_(total)


class Broadcast(Collective[Tensor]):
    """A copy of the root's tensor, by a tree."""

    def moves(self) -> Iterator[list[MPI.Request]]:
        """Receive from the parent; send to the children."""
        root, layout = int(self.call.argument), self.call.layout
        if self.is_small:
            self._copy = self.inline(root)
            if self.rank == root:
                self._copy.copy_(self.x)
            yield []
            return
        buffer = self.take(layout.nbytes)
        self._copy = layout.view(buffer)
        if self.rank == root:
            self._copy.copy_(self.x)
        parent, children = _tree((self.rank - root) % self.comm.size, self.comm.size)
        yield [] if parent is None else [self.receive(buffer, (parent + root) % self.comm.size, PIECE)]
        yield [self.send(buffer, (child + root) % self.comm.size, PIECE) for child in children]

    def result(self) -> Tensor:
        """Copy the root's tensor into ``x``."""
        if self.rank != self.call.argument:
            self.x.copy_(self._copy)
        self.release()
        return self.x


class Gather(Collective[list[Tensor]]):
    """The tensors of all ranks, each sent to all others; the headers tell the sizes."""

    def __init__(self, group: Group, call: CollectiveCall, x: Tensor, lent: Lent) -> None:
        self._lent = lent[Kind.GATHER]
        super().__init__(group, call, x)

    def moves(self) -> Iterator[list[MPI.Request]]:
        """Send ours at once; receive when all sizes are known."""
        mine = self.take(self.call.layout.nbytes)
        self.call.layout.view(mine).copy_(self.x)
        sending = [self.send(mine, rank, PIECE) for rank in self.others]
        yield []
        memory = {rank: self.take(self.calls[rank].layout.nbytes) for rank in self.others}
        self._gathered = [call.layout.view(memory.get(rank, mine)) for rank, call in enumerate(self.calls)]
        yield sending + [self.receive(memory[rank], rank, PIECE) for rank in self.others]

    def result(self) -> list[Tensor]:
        """Lend the tensors."""
        self._lent.append(self.release)
        return [tensor.to(self.x.device) for tensor in self._gathered]


def _tree(node: int, size: int) -> tuple[int | None, list[int]]:
    """Return the parent and the children of a node of a binomial tree with root 0, the largest branch first."""
    lowest = node & -node if node else 1 << (size - 1).bit_length()
    children = [
        node + step for step in (1 << k for k in reversed(range(lowest.bit_length() - 1))) if node + step < size
    ]
    return (node - lowest if node else None), children
