"""The communicator under MPI: its verbs, its groups, and requests that a peer serves."""

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
from roundelay.runtimes.mpi.collectives import Broadcast, Gather, Mean
from roundelay.runtimes.mpi.mpi_messages import Lender, MessageHeader, unpack
from roundelay.runtimes.mpi.progress_engine import REPLY, REQUEST, TAG_PERIOD, Engine, Incoming, Operation
from roundelay.runtimes.single_learner import Settled

__all__ = ["MpiCommunicator"]

T = TypeVar("T")

EXCHANGE = 1  # in a group's own communicator; takes TURNS tags, after which come those of collectives
MAX_KEPT_GROUPS = 62  # of one partition: they are told about as the bits of one number


class MpiCommunicator:
    """One rank's view of a group; ``members`` are its ranks in the world."""

    def __init__(self, engine: Engine, comm: MPI.Intracomm, members: Sequence[int]) -> None:
        self.engine, self.comm, self.members = engine, comm, tuple(members)
        self.rank, self.size = comm.rank, comm.size
        self._collectives = 0
        self._sent, self._received = [0] * self.size, [0] * self.size
        self._lenders = {verb: Lender(engine.buffers) for verb in ("gather", "exchange", "request")}
        self._groups: dict[tuple[tuple[int, ...], ...], list[_Kept]] = {}

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the weighted mean."""
        if self.size == 1:
            return Settled(x)
        return self._start(Mean(self.engine, self.comm, self._header("mean", x, weight), x))

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Everyone's ``x``."""
        if self.size == 1:
            return Settled([x.clone()])
        return self._start(Gather(self.engine, self.comm, self._header("gather", x), x, self._lenders["gather"]))

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``root``'s ``x`` into everyone's."""
        if self.size == 1:
            return Settled(x)
        return self._start(Broadcast(self.engine, self.comm, self._header("broadcast", x, root), x))

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        """Send to one rank, receive from another."""
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
        """Have ``to`` serve our ``x``."""
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
            answer = Incoming(engine.service, peer, REPLY + number % TAG_PERIOD, engine.buffers)
            return self._start(_Received(self, answer, x, self._lenders["request"]))

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Make the communicator of the group we are in.

        Partitions come again, once a stretch, and MPI has only so many communicators to give: one that nobody uses any
        more, on any rank, is taken again.
        """
        partition = tuple(tuple(group) for group in groups)
        mine = next((group for group in partition if self.rank in group), None)
        if mine is None:
            raise Mismatch(f"rank {self.rank} is in none of the groups {partition}")
        kept = self._groups.setdefault(partition, [])
        unused = self._agree_on_unused(partition, kept)
        if unused is None:
            with self.engine.lock:
                kept.append(_Kept(self.comm.Split(partition.index(mine), mine.index(self.rank))))
        place = kept[-1 if unused is None else unused]
        made = MpiCommunicator(self.engine, place.comm, [self.members[rank] for rank in mine])
        place.user = weakref.ref(made)
        return made

    @property
    def num_kept_groups(self) -> int:
        """How many MPI communicators splits have made and keep."""
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
            raise Mismatch(f"split: rank {other} named other groups than rank {self.rank}, which named {partition}")
        common = int(np.bitwise_and.reduce(everyone[:, 1]))
        return (common & -common).bit_length() - 1 if common else None

    def _header(self, operation: str, x: Tensor, argument: float = 0.0) -> MessageHeader:
        self._collectives += 1
        # What a member sends by the ring algorithm, whatever MPI chooses: so that runtimes can be compared.
        share = {"mean": 2 * (self.size - 1) / self.size, "gather": self.size - 1, "broadcast": 1.0}[operation]
        self.engine.recorder.count_bytes(x.nbytes * share)
        return MessageHeader.of(operation, x, sequence=self._collectives, rank=self.rank, argument=argument)

    def _start(self, operation: Operation[T]) -> Operation[T]:
        self.engine.begin(operation)
        return operation


class _Kept:
    """An MPI communicator that a split has made, and who uses it."""

    def __init__(self, comm: MPI.Comm) -> None:
        assert isinstance(comm, MPI.Intracomm)
        self.comm = comm
        self.user: weakref.ref[MpiCommunicator]


class _Received(Operation[Tensor]):
    """A tensor that a peer sends, by an exchange or as the answer to a request."""

    def __init__(self, comm: MpiCommunicator, incoming: Incoming, x: Tensor, lender: Lender) -> None:
        super().__init__(comm.engine)
        self._comm = comm  # a group is in use as long as a message to it is on its way
        self._incoming, self._device, self._lender = incoming, x.device, lender

    def advance(self) -> bool:
        """Probe, then receive."""
        done = self._incoming.advance()
        if self.arrived is None and self._incoming.matched:
            self.arrived, self.size = self.engine.now(), self._incoming.size
        return done

    def result(self) -> Tensor:
        """Lend it."""
        self._lender.lend(self._incoming.buffer)
        return unpack(self._incoming.buffer)[1].to(self._device)


class _OwnReply(Operation[Tensor]):
    """The answer to a request to ourselves."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._reply: Tensor | None = None

    def send(self, reply: Tensor) -> None:
        """Answer now."""
        self._reply = reply.detach().clone()

    def advance(self) -> bool:
        """See whether it is given."""
        return self._reply is not None

    def result(self) -> Tensor:
        """Return it."""
        assert self._reply is not None
        return self._reply
