"""Mean, gather and broadcast over MPI; each begins with the headers of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from roundelay.errors import Mismatch
from roundelay.runtimes.messages import Kind
from roundelay.runtimes.mpi.mpi_messages import HEADER_WORDS, Bytes, MessageHeader, tensor_in
from roundelay.runtimes.mpi.mpi_transport import MpiTransport, Operation
from roundelay.runtimes.session import Lent
from roundelay.runtimes.tensor_layout import Layout
from roundelay.runtimes.weighted_mean import divide

__all__ = ["Broadcast", "Gather", "Mean"]

T = TypeVar("T")

INLINE_WORDS = 16  # a tensor that fits is sent with the header: barriers, flags and claims
TAG_PERIOD = 8192  # sequence numbers repeat in tags; MPI guarantees tags up to 32767 only
PIECE, SUM = 0, TAG_PERIOD  # gathered tensors and pieces of a mean; sums


class Collective(Operation[T]):
    """A collective whose first part is small and fixed in size: the headers of all ranks.

    They tell each rank that all are here, which operation each calls, and a mean's weights in rank order.  Tensors move
    by messages between pairs: MPI's own collectives must all start in one order, which is impossible if a message
    depends on one received before.
    """

    def __init__(self, transport: MpiTransport, comm: MPI.Intracomm, header: MessageHeader, x: Tensor) -> None:
        super().__init__(transport)
        self.comm, self.header, self.x, self.size = comm, header, x, x.nbytes
        self.rank, self.others = comm.rank, [rank for rank in range(comm.size) if rank != comm.rank]
        self.headers: list[MessageHeader] = []
        self._turn = header.sequence % TAG_PERIOD
        self._words = np.zeros((comm.size, HEADER_WORDS + INLINE_WORDS), np.int64)
        self._words[self.rank, :HEADER_WORDS] = header.words()
        self._taken: list[Bytes] = []
        with transport.lock:
            self._moves = self.moves()
            self._requests = next(self._moves)
            self._calls = comm.Iallgather(MPI.IN_PLACE, self._words)

    def moves(self) -> Iterator[list[MPI.Request]]:
        """Start to move tensors; after each ``yield`` all headers are there and the yielded requests are done."""
        raise NotImplementedError

    def advance(self) -> bool:
        """Wait for all headers, then for the tensors."""
        if not self.headers:
            if not self._calls.Test():
                return False
            self.arrived = self.transport.now()
            self.headers = [MessageHeader.read(words) for words in self._words]
            self._check_match()
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
        return tensor_in(self._words[rank, HEADER_WORDS:].view(np.uint8), Layout.of(self.x))

    @property
    def is_small(self) -> bool:
        """Whether the tensor is sent with the header."""
        return self.x.nbytes <= 8 * INLINE_WORDS

    def take(self, size: int) -> Bytes:
        """Take a buffer until `free_buffers`."""
        self._taken.append(self.transport.buffers.take(size))
        return self._taken[-1]

    def free_buffers(self) -> None:
        """Free all taken buffers."""
        with self.transport.lock:
            for buffer in self._taken:
                self.transport.buffers.give(buffer)
            self._taken.clear()

    def send(self, buffer: Bytes, to: int, tag: int) -> MPI.Request:
        """Start to send bytes."""
        return self.comm.Isend([buffer, buffer.size, MPI.BYTE], to, tag + self._turn)

    def receive(self, buffer: Bytes, source: int, tag: int) -> MPI.Request:
        """Start to receive bytes."""
        return self.comm.Irecv([buffer, buffer.size, MPI.BYTE], source, tag + self._turn)

    def _check_match(self) -> None:
        for rank, theirs in enumerate(self.headers):
            if not theirs.matches(self.header):
                raise Mismatch(
                    f"collective {self.header.sequence}: rank {rank} called {theirs}, "
                    f"rank {self.rank} called {self.header}"
                )


class Mean(Collective[Tensor]):
    """A sum in rank order, so that it equals the simulator's to the bit; MPI's own sum does not promise that.

    Each rank adds one piece of the vector and sends the sum to all.  It sends and receives twice the vector less two
    pieces, as by the ring algorithm.
    """

    def moves(self) -> Iterator[list[MPI.Request]]:
        """Scale; send pieces; add ours; send the sum."""
        layout, size = Layout.of(self.x), self.comm.size
        if self.is_small:
            self._scale_into(self.inline(self.rank))
            yield []
            self._mean = self._add([self.inline(rank) for rank in range(size)], self.inline(self.rank))
            return
        buffer = self.take(layout.nbytes)[: layout.nbytes]
        self._mean = tensor_in(buffer, layout)
        self._scale_into(self._mean)
        cuts = [self.x.numel() * k // size * layout.dtype.itemsize for k in range(size + 1)]
        pieces = [buffer[a:b] for a, b in pairwise(cuts)]
        mine = pieces[self.rank]
        theirs = {rank: self.take(mine.size)[: mine.size] for rank in self.others}
        yield [
            *(self.receive(theirs[rank], rank, PIECE) for rank in self.others),
            *(self.send(pieces[rank], rank, PIECE) for rank in self.others),
        ]
        summands = [_flat(theirs.get(rank, mine), layout.dtype) for rank in range(size)]
        self._add(summands, summands[self.rank])
        yield [
            *(self.receive(pieces[rank], rank, SUM) for rank in self.others),
            *(self.send(mine, rank, SUM) for rank in self.others),
        ]

    def result(self) -> Tensor:
        """Copy the mean into ``x``."""
        if any(header.argument for header in self.headers):
            self.x.copy_(self._mean)
        self.free_buffers()
        return self.x

    def _scale_into(self, staged: Tensor) -> None:
        weight = self.header.argument
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
        weight = sum(header.argument for header in self.headers)
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
        root, layout = int(self.header.argument), Layout.of(self.x)
        if self.is_small:
            self._copy = self.inline(root)
            if self.rank == root:
                self._copy.copy_(self.x)
            yield []
            return
        buffer = self.take(layout.nbytes)[: layout.nbytes]
        self._copy = tensor_in(buffer, layout)
        if self.rank == root:
            self._copy.copy_(self.x)
        parent, children = _tree((self.rank - root) % self.comm.size, self.comm.size)
        yield [] if parent is None else [self.receive(buffer, (parent + root) % self.comm.size, PIECE)]
        yield [self.send(buffer, (child + root) % self.comm.size, PIECE) for child in children]

    def result(self) -> Tensor:
        """Copy the root's tensor into ``x``."""
        if self.rank != self.header.argument:
            self.x.copy_(self._copy)
        self.free_buffers()
        return self.x


class Gather(Collective[list[Tensor]]):
    """The tensors of all ranks, each sent to all others; the headers tell the sizes."""

    def __init__(
        self, transport: MpiTransport, comm: MPI.Intracomm, header: MessageHeader, x: Tensor, lent: Lent
    ) -> None:
        self._lent = lent[Kind.GATHER]
        super().__init__(transport, comm, header, x)

    def moves(self) -> Iterator[list[MPI.Request]]:
        """Send ours at once; receive when all sizes are known."""
        layout = Layout.of(self.x)
        mine = self.transport.buffers.take(layout.nbytes)
        tensor_in(mine, layout).copy_(self.x)
        sending = [self.send(mine[: layout.nbytes], rank, PIECE) for rank in self.others]
        yield []
        sizes = [theirs.layout.nbytes for theirs in self.headers]
        self._buffers = [
            mine if rank == self.rank else self.transport.buffers.take(size) for rank, size in enumerate(sizes)
        ]
        yield sending + [self.receive(self._buffers[rank][: sizes[rank]], rank, PIECE) for rank in self.others]

    def result(self) -> list[Tensor]:
        """Lend the tensors."""
        self._lent += [partial(self.transport.free, buffer) for buffer in self._buffers]
        return [
            tensor_in(buffer, theirs.layout).to(self.x.device)
            for buffer, theirs in zip(self._buffers, self.headers, strict=True)
        ]


def _flat(piece: Bytes, dtype: torch.dtype) -> Tensor:
    return tensor_in(piece, Layout(dtype, (piece.size // dtype.itemsize,)))


def _tree(node: int, size: int) -> tuple[int | None, list[int]]:
    """Return the parent and the children of a node of a binomial tree with root 0, the largest branch first."""
    lowest = node & -node if node else 1 << (size - 1).bit_length()
    children = [
        node + step for step in (1 << k for k in reversed(range(lowest.bit_length() - 1))) if node + step < size
    ]
    return (node - lowest if node else None), children
