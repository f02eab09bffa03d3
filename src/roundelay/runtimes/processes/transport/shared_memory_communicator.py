"""Collectives through shared memory: each rank publishes its vector and reads those of the others."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.errors import LearnerLost
from roundelay.runtimes.blocking import Blocking
from roundelay.runtimes.messages import CALL_WORDS, CollectiveCall, Layout
from roundelay.runtimes.processes.transport.shared_memory_messages import SharedMemoryTransport
from roundelay.runtimes.processes.transport.shared_memory_segments import LINE, RING, RING_BYTES, Segment
from roundelay.runtimes.session import PointToPoint, Session
from roundelay.runtimes.weighted_mean import divide, scale

CHUNK_BYTES = 1 << 19  # small enough to stay in the cache
BROADCASTS_AHEAD = 4  # how many broadcasts a root may be ahead of the others


class SharedMemoryCommunicator(PointToPoint):
    """A communicator whose members all run on one host.

    A collective publishes its vector when it is called.  The rest happens in the await, and needs only that the others
    have published theirs: a slow learner delays the others by no more than that.

    Two ranks compute a mean each for itself.  More ranks share the work by chunks: the first rank that comes to a chunk
    computes and publishes it, the others copy it.  No rank waits for another's share, and the bits are the same.
    """

    def __init__(
        self, session: Session, transport: SharedMemoryTransport, members: Sequence[int], path: str = "world"
    ) -> None:
        super().__init__(session, members, path)
        self.transport = transport
        self._ring = transport.arena.take(RING_BYTES)
        transport.segment.bytes[self._ring : self._ring + RING_BYTES].zero_()
        transport.segment.enter(self.key, self._ring)
        self._rings: dict[int, int] = {self.rank: self._ring}  # by rank in the group
        self._number = 0
        self._pending: deque[_Collective] = deque()
        self._blocks: deque[tuple[int, int]] = deque()  # number and block of collectives that others may still read
        self._lent_tensors: list[Tensor] = []  # results of gathers, until the next one begins
        self._free_tensors: dict[Layout, list[Tensor]] = defaultdict(list)

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        """Replace ``x`` by the mean over the group."""
        if self.size == 1:
            return Blocking(lambda: x)
        if x.device.type != "cpu":
            return self._through_host(x, lambda host: self._begin(_Collective("mean", host, weight)))
        return self._begin(_Collective("mean", x, weight))

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        """Return ``x`` of all ranks, in rank order."""
        self._reclaim_tensors()
        if self.size == 1:
            mine = x.clone()
            return Blocking(lambda: [mine])
        if x.device.type != "cpu":
            gathered = self._begin(_Collective("gather", x.detach().cpu()))
            return Blocking(lambda: [tensor.to(x.device) for tensor in gathered.wait()])
        return self._begin(_Collective("gather", x))

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        """Copy ``x`` of rank ``root`` into ``x`` of all ranks."""
        if self.size == 1:
            return Blocking(lambda: x)
        if x.device.type != "cpu":
            return self._through_host(x, lambda host: self._begin(_Collective("broadcast", host, root)))
        return self._begin(_Collective("broadcast", x, root))

    def _through_host(self, x: Tensor, begin: Callable[[Tensor], Blocking[Tensor]]) -> Awaitable[Tensor]:
        """Do a collective of an accelerator's tensor in host memory, for ranks that share a device."""
        awaited = begin(x.detach().cpu().contiguous())
        return Blocking(lambda: x.copy_(awaited.wait()))

    def _make(self, members: Sequence[int], path: str) -> Communicator:
        return SharedMemoryCommunicator(self.session, self.transport, members, path)

    # -- beginning ----------------------------------------------------------------------------------------------

    def _begin(self, collective: _Collective) -> Blocking[Any]:
        if self.session.end_reason is not None:
            raise LearnerLost(self.session.end_reason)
        with self.session.communicating():
            self._reclaim()
            if self._number - self._all_done() >= RING:
                self._complete(self._number - RING + 1)  # needs only what others have published, so it cannot deadlock
                self.session.wait(lambda: self._number - self._all_done() < RING or None)
            self._publish(collective)
        return Blocking(lambda: self._await(collective))

    def _publish(self, collective: _Collective) -> None:
        transport, call, layout = self.transport, collective.call, collective.call.layout
        collective.number = number = self._number
        block = 0
        if call.operation != "broadcast" or call.argument == self.rank:
            chunks = _Chunks(layout, self.size) if call.operation == "mean" else None
            block = transport.arena.take(layout.nbytes if chunks is None else chunks.nbytes)
            transport.segment.view(block, layout).copy_(collective.x)
            if chunks is not None:
                chunks.clear(transport.segment, block)
            self._blocks.append((number, block))
            self.session.recorder.count_bytes(layout.nbytes)
        collective.parts[self.rank] = _Part(call, block)
        transport.segment.write(self._ring, number, *call.encode(), block, 0, 0)
        self._number += 1
        self._pending.append(collective)
        transport.notify(self.members)

    def _reclaim(self) -> None:
        # A block is in use until the others have read it and we have completed the collective ourselves: our own share
        # of a mean is computed from it.
        ours = self._pending[0].number if self._pending else self._number
        done = min(self._all_done(), ours)
        while self._blocks and self._blocks[0][0] < done:
            self.transport.arena.give(self._blocks.popleft()[1])

    def _all_done(self) -> int:
        """Return the number of collectives that all others have completed."""
        done = self._number
        for rank in range(self.size):
            if rank != self.rank:
                ring = self._find(rank)
                done = min(done, self.transport.segments[self.members[rank]].taken(ring) if ring is not None else 0)
        return done

    def _find(self, rank: int) -> int | None:
        """Return the offset of a member's ring of collectives, if it has made this group too."""
        ring = self._rings.get(rank)
        if ring is None:
            ring = self.transport.segments[self.members[rank]].find(self.key)
            if ring is not None:
                self._rings[rank] = ring
        return ring

    # -- completing ---------------------------------------------------------------------------------------------

    def _await(self, collective: _Collective) -> Any:
        if not collective.completed:
            self._complete(collective.number + 1)
        if collective.call.operation == "gather":
            self._lent_tensors += collective.result
        return collective.result

    def _complete(self, end: int) -> None:
        """Complete all collectives before number ``end``, in their order."""
        while self._pending and self._pending[0].number < end:
            collective = self._pending[0]
            for rank in self._needed(collective):
                self._await_rank(collective, rank)
            with self.session.communicating():
                collective.result = getattr(self, f"_do_{collective.call.operation}")(collective)
            collective.completed = True
            self._pending.popleft()
            self.transport.segment.take(self._ring, collective.number + 1)
            if collective.call.operation == "broadcast":
                self._limit_lead(collective)

    def _needed(self, collective: _Collective) -> Sequence[int]:
        if collective.call.operation == "broadcast":
            return () if collective.root == self.rank else (collective.root,)
        return [rank for rank in range(self.size) if rank != self.rank]

    def _await_rank(self, collective: _Collective, rank: int) -> None:
        """Wait until a member has published its part; raise `Mismatch` if it called another collective."""
        segment, number = self.transport.segments[self.members[rank]], collective.number

        def published() -> bool | None:
            ring = self._find(rank)
            return True if ring is not None and segment.written(ring) > number else None

        self.session.wait(published)
        entry = segment.entry(self._rings[rank], number)
        theirs = collective.parts[rank] = _Part(CollectiveCall.decode(entry), entry[CALL_WORDS])
        collective.call.check(theirs.call, number, rank=self.rank, other=rank)

    def _limit_lead(self, collective: _Collective) -> None:
        """Let a root wait for the others, so that unread vectors do not fill the memory."""
        if collective.root == self.rank:
            self.session.wait(lambda: self._all_done() > collective.number - BROADCASTS_AHEAD or None)
        else:
            self.transport.notify([self.members[collective.root]])

    # -- the collectives ----------------------------------------------------------------------------------------

    def _tensor(self, rank: int, collective: _Collective) -> Tensor:
        """Return the vector that a member has published."""
        part = collective.parts[rank]
        return self.transport.segments[self.members[rank]].view(part.block, part.call.layout)

    def _do_broadcast(self, collective: _Collective) -> Tensor:
        if collective.root != self.rank:
            collective.x.copy_(self._tensor(collective.root, collective).view(collective.x.shape))
        return collective.x

    def _do_gather(self, collective: _Collective) -> list[Tensor]:
        results = []
        for rank in range(self.size):
            source, free = self._tensor(rank, collective), self._free_tensors[collective.parts[rank].call.layout]
            results.append((free.pop() if free else torch.empty_like(source)).copy_(source))
        return results

    def _reclaim_tensors(self) -> None:
        """Reuse the results of earlier gathers; sizes that the last one did not have are freed."""
        self._free_tensors.clear()
        for tensor in self._lent_tensors:
            self._free_tensors[Layout.of(tensor)].append(tensor)
        self._lent_tensors = []

    def _do_mean(self, collective: _Collective) -> Tensor:
        x = collective.x
        weights = [collective.parts[rank].call.argument for rank in range(self.size)]
        if any(weights):
            out = x.view(-1) if x.is_contiguous() else x.reshape(-1).clone()
            sources = [self._tensor(rank, collective).view(-1) for rank in range(self.size)]
            if self.size == 2:
                sources[self.rank] = out  # rather than its copy: one vector less to read
            chunks = _Chunks(collective.call.layout, self.size)
            if chunks.shared:
                self._share_work(collective, chunks, sources, weights, out)
            else:
                for part in map(chunks.part, range(chunks.count)):
                    _mean_of_chunk(out[part], [source[part] for source in sources], weights)
            if not x.is_contiguous():
                x.copy_(out.view(x.shape))
        return x

    def _share_work(
        self,
        collective: _Collective,
        chunks: _Chunks,
        sources: Sequence[Tensor],
        weights: Sequence[float],
        out: Tensor,
    ) -> None:
        """Compute the chunks that no rank has computed yet, from our own first one on; copy the others."""
        segments = [self.transport.segments[member] for member in self.members]
        blocks = [collective.parts[rank].block for rank in range(self.size)]
        sums = [
            segments[rank].view(blocks[rank] + chunks.sums, Layout(collective.call.layout.dtype, (chunks.numel,)))
            for rank in range(self.size)
        ]
        first = chunks.count * self.rank // self.size
        for index in (*range(first, chunks.count), *range(first)):
            part = chunks.part(index)
            for rank in range(self.size):
                if segments[rank].counters[(blocks[rank] + chunks.flags) // 8 + index]:
                    out[part].copy_(sums[rank][part])
                    break
            else:
                mine = sums[self.rank][part]
                _mean_of_chunk(mine, [source[part] for source in sources], weights)
                segments[self.rank].counters[(blocks[self.rank] + chunks.flags) // 8 + index] = 1
                out[part].copy_(mine)


class _Chunks:
    """How the work of one mean is divided: the same for all members."""

    def __init__(self, layout: Layout, size: int) -> None:
        self.numel = layout.nbytes // layout.dtype.itemsize
        self.length = CHUNK_BYTES // layout.dtype.itemsize
        self.count = -(-self.numel // self.length)
        self.shared = size > 2 and self.count > 1
        self.sums = -(-layout.nbytes // LINE) * LINE  # offset of the sums in a block; the flags follow
        self.flags = 2 * self.sums
        self.nbytes = self.flags + 8 * self.count if self.shared else layout.nbytes

    def part(self, index: int) -> slice:
        """Return the slice of a chunk in the vector."""
        return slice(index * self.length, min((index + 1) * self.length, self.numel))

    def clear(self, segment: Segment, block: int) -> None:
        """Clear the flags of all chunks."""
        if self.shared:
            segment.raw[block + self.flags : block + self.nbytes] = bytes(8 * self.count)


def _mean_of_chunk(out: Tensor, sources: Sequence[Tensor], weights: Sequence[float]) -> None:
    """Write the weighted mean of ``sources``, as `mean_of` computes it; ``out`` may be one of two sources."""
    torch.add(scale(sources[0], weights[0]), scale(sources[1], weights[1]), out=out)
    for source, weight in zip(sources[2:], weights[2:], strict=True):
        out.add_(scale(source, weight))
    divide(out, sum(weights))


class _Part(NamedTuple):
    """The part of a collective that a member has published."""

    call: CollectiveCall
    block: int


class _Collective:
    """A collective that we have called."""

    def __init__(self, operation: str, x: Tensor, argument: float = 0.0) -> None:
        self.x, self.call = x, CollectiveCall.of(operation, x, argument)
        self.number = -1
        self.parts: dict[int, _Part] = {}
        self.completed = False
        self.result: Any = None

    @property
    def root(self) -> int:
        """The root of a broadcast."""
        return int(self.call.argument)
