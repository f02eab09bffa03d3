"""The communicator under MPI: operations, groups, and requests that a peer serves."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import numpy as np
from mpi4py import MPI
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.errors import Mismatch
from roundelay.runtimes.blocking import Settled
from roundelay.runtimes.mpi.collectives import Broadcast, Gather, Mean
from roundelay.runtimes.mpi.mpi_messages import Lender, MessageHeader, unpack
from roundelay.runtimes.mpi.progress_engine import REPLY, REQUEST, TAG_PERIOD, Engine, Incoming, Operation

__all__ = ["MpiCommunicator"]

T = TypeVar("T")

EXCHANGE = 1  # in a group's own communicator; takes TAG_PERIOD tags; those of collectives follow
MAX_KEPT_GROUPS = 62  # of one partition: one bit each in one integer


class MpiCommunicator:
    """One rank's view of a group; ``members`` are its ranks in the world."""

    def __init__(self, engine: Engine, comm: MPI.Intracomm, members: Sequence[int]) -> None:
        self.engine, self.comm, self.members = engine, comm, tuple(members)
        self.rank, self.size = comm.rank, comm.size
        self._collectives = 0
        self._sent, self._received = [0] * self.size, [0] * self.size
        self._lenders = {kind: Lender(engine.buffers) for kind in ("gather", "exchange", "request")}
        self._groups: dict[tuple[tuple[int, ...], ...], list[_Kept]] = {}

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the weighted mean."""
        if self.size == 1:
            return Settled(x)
        return self._start(Mean(self.engine, self.comm, self._header("mean", x, weight), x))

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Return ``x`` of all ranks."""
        if self.size == 1:
            return Settled([x.clone()])
        return self._start(Gather(self.engine, self.comm, self._header("gather", x), x, self._lenders["gather"]))

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``x`` of rank ``root`` into ``x`` of all ranks."""
        if self.size == 1:
            return Settled(x)
        return self._start(Broadcast(self.engine, self.comm, self._header("broadcast", x, root), x))

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send ``x`` to one rank, receive a tensor from another."""
        engine, sent, received = self.engine, self._sent[to], self._received[source]
        self._sent[to], self._received[source] = sent + 1, received + 1
        engine.recorder.count_bytes(x.nbytes if to != self.rank else 0)
        with engine.lock:
            self._lenders["exchange"].reclaim()
            header = MessageHeader.of("exchange", x, sequence=sent, rank=self.rank)
            engine.send(self.comm, header, x, to=to, tag=EXCHANGE + sent % TAG_PERIOD)
            theirs = Incoming(self.comm, source, EXCHANGE + received % TAG_PERIOD, engine.buffers)
            return self._start(_Received(self, theirs, x, self._lenders["exchange"]))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        """Send ``x`` to rank ``to``; return the reply of its strategy's `serve`."""
        engine = self.engine
        if to == self.rank:
            own = _OwnReply(engine)
            engine.serve_own(x.detach().clone(), self.rank, own.send)
            return self._start(own)
        engine.recorder.count_bytes(x.nbytes)
        with engine.lock:
            self._lenders["request"].reclaim()
            number, peer = engine.next_request(), self.members[to]
            header = MessageHeader.of("request", x, sequence=number, rank=self.rank)
            engine.send(engine.service, header, x, to=peer, tag=REQUEST)
            reply = Incoming(engine.service, peer, REPLY + number % TAG_PERIOD, engine.buffers)
            return self._start(_Received(self, reply, x, self._lenders["request"]))

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Return the communicator of our group.

        The same partitions come again in each interval, and MPI has a limited number of communicators: one that no rank
        uses any more is used again.
        """
        partition = tuple(tuple(group) for group in groups)
        mine = next((ranks for ranks in partition if self.rank in ranks), None)
        if mine is None:
            raise Mismatch(f"rank {self.rank} is in none of the groups {partition}")
        kept = self._groups.setdefault(partition, [])
        unused = self._agree_on_unused(partition, kept)
        if unused is None:
            with self.engine.lock:
                kept.append(_Kept(self.comm.Split(partition.index(mine), mine.index(self.rank))))
        group = kept[-1 if unused is None else unused]
        made = MpiCommunicator(self.engine, group.comm, [self.members[rank] for rank in mine])
        group.user = weakref.ref(made)
        return made

    @property
    def num_kept_groups(self) -> int:
        """Number of MPI communicators that splits have made."""
        return sum(len(kept) for kept in self._groups.values())

    def _agree_on_unused(self, partition: tuple[tuple[int, ...], ...], kept: list[_Kept]) -> int | None:
        digest = int.from_bytes(hashlib.blake2b(repr(partition).encode(), digest_size=7).digest(), "big")
        unused = sum(1 << k for k, group in enumerate(kept[:MAX_KEPT_GROUPS]) if group.user() is None)
        mine, everyone = np.array([digest, unused], np.int64), np.empty((self.size, 2), np.int64)
        with self.engine.lock:
            request = self.comm.Iallgather(mine, everyone)
        self.engine.finish(request)
        other = next((rank for rank in range(self.size) if everyone[rank, 0] != digest), None)
        if other is not None:
            raise Mismatch(f"split: rank {other} gave other groups than rank {self.rank}, which gave {partition}")
        common = int(np.bitwise_and.reduce(everyone[:, 1]))
        return (common & -common).bit_length() - 1 if common else None

    def _header(self, operation: str, x: Tensor, argument: float = 0.0) -> MessageHeader:
        self._collectives += 1
        # The bytes of the ring algorithm, whatever MPI does, so that runtimes can be compared.
        share = {"mean": 2 * (self.size - 1) / self.size, "gather": self.size - 1, "broadcast": 1.0}[operation]
        self.engine.recorder.count_bytes(x.nbytes * share)
        return MessageHeader.of(operation, x, sequence=self._collectives, rank=self.rank, argument=argument)

    def _start(self, operation: Operation[T]) -> Operation[T]:
        self.engine.begin(operation)
        return operation


class _Kept:
    """An MPI communicator that a split has made, and the communicator that uses it."""

    def __init__(self, comm: MPI.Comm) -> None:
        assert isinstance(comm, MPI.Intracomm)
        self.comm = comm
        self.user: weakref.ref[MpiCommunicator]


class _Received(Operation[Tensor]):
    """A tensor that a peer sends, in an exchange or as the reply to a request."""

    def __init__(self, comm: MpiCommunicator, incoming: Incoming, x: Tensor, lender: Lender) -> None:
        super().__init__(comm.engine)
        self._comm = comm  # a group is in use while a message to it is under way
        self._incoming, self._device, self._lender = incoming, x.device, lender

    def advance(self) -> bool:
        """Probe, then receive."""
        done = self._incoming.advance()
        if self.arrived is None and self._incoming.matched:
            self.arrived, self.size = self.engine.now(), self._incoming.size
        return done

    def result(self) -> Tensor:
        """Lend the tensor."""
        self._lender.lend(self._incoming.buffer)
        return unpack(self._incoming.buffer)[1].to(self._device)


class _OwnReply(Operation[Tensor]):
    """The reply to a request to ourselves."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._reply: Tensor | None = None

    def send(self, reply: Tensor) -> None:
        """Send the reply."""
        self._reply = reply.detach().clone()

    def advance(self) -> bool:
        """Return whether it was sent."""
        return self._reply is not None

    def result(self) -> Tensor:
        """Return the reply."""
        assert self._reply is not None
        return self._reply
