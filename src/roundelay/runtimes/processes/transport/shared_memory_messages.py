"""Messages and collectives through shared memory, for learners on one host."""

from __future__ import annotations

import os
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from roundelay.errors import CommunicationError, LearnerLost
from roundelay.runtimes.processes.transport.messages import Kind, Label, Layout, Message
from roundelay.runtimes.processes.transport.shared_memory_segments import (
    MAIN,
    NUM_LANES,
    REQUESTS,
    RING,
    Arena,
    Notifier,
    Segment,
    lane,
)

__all__ = ["SharedMemoryTransport"]

T = TypeVar("T")
LONGEST_SLEEP = 0.05  # a bell wakes us sooner


class SharedMemoryTransport:
    """A `Transport` in memory: a message lies in its sender's segment until its receiver has done with it."""

    def __init__(self) -> None:
        self.segment, self._file = Segment.create()
        self.rank, self.size = 0, 1
        self.segments: list[Segment] = []
        self.arena: Arena
        self._notifiers: list[list[Notifier]] = []
        self._end_reason: str | None = None
        self._sent: dict[int, deque[int]] = defaultdict(deque)  # by ring: blocks under way
        self._first: dict[int, int] = defaultdict(int)  # by ring: which message the first of them is
        self._read: dict[int, int] = defaultdict(int)  # by ring: messages read
        self._released: dict[int, set[int]] = defaultdict(set)
        self._inbox: dict[tuple[int, Label], deque[Message]] = defaultdict(deque)
        self._requests: deque[Message] = deque()

    @property
    def address(self) -> dict[str, str]:
        """How others find our segment."""
        return {"path": f"/proc/{os.getpid()}/fd/{self._file}", "nonce": self.segment.nonce}

    def connect(self, rank: int, addresses: Sequence[dict[str, Any]]) -> None:
        """Map everyone's segment."""
        self.rank, self.size, self.arena = rank, len(addresses), Arena(len(addresses))
        for other, card in enumerate(addresses):
            segment = self.segment if other == rank else Segment(card["path"])
            if segment.nonce != card["nonce"]:
                raise CommunicationError(f"{card['path']}: not the memory of rank {other}")
            self.segments.append(segment)
        self._notifiers = [[Notifier(segment, which, rank) for which in range(NUM_LANES)] for segment in self.segments]

    # -- the post -----------------------------------------------------------------------------------------------

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Copy ``x`` into our segment and tell ``to``."""
        which = REQUESTS if label.kind is Kind.REQUEST else MAIN
        ring, layout = lane(to, which), Layout.of(x)
        self._reclaim(to, ring, lane(self.rank, which))
        block, number = self.arena.take(layout.nbytes), self.segment.written(ring)
        self.segment.view(block, layout).copy_(x)
        self._sent[ring].append(block)
        self.segment.write(ring, number, *label, block, *layout.encode(), 0)
        self._notifiers[to][which].notify()
        return layout.nbytes

    def receive(self, source: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if it has come."""
        self._collect(source, MAIN)
        waiting = self._inbox.get((source, label))
        if not waiting:
            return None
        message = waiting.popleft()
        if not waiting:
            del self._inbox[source, label]
        return message

    def next_request(self) -> Message | None:
        """Return the oldest request, if one has come."""
        for source in range(self.size):
            if source != self.rank:
                self._collect(source, REQUESTS)
        return self._requests.popleft() if self._requests else None

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        """Sleep on our bell until ``check`` returns something."""
        bell = self._notifiers[self.rank][REQUESTS if requests else MAIN]
        while True:
            value = bell.read()
            result = check()
            if result is not None:
                return result
            if self._end_reason is not None:
                raise LearnerLost(self._end_reason)
            bell.sleep(value, LONGEST_SLEEP)

    def notify(self, ranks: Sequence[int]) -> None:
        """Wake these, for news in a collective."""
        for rank in ranks:
            if rank != self.rank:
                self._notifiers[rank][MAIN].notify()

    def wake(self) -> None:
        """Have all who wait in this process check again."""
        for bell in self._notifiers[self.rank] if self._notifiers else ():
            bell.notify()

    def abort(self, reason: str) -> None:
        """Have all who wait raise."""
        self._end_reason = self._end_reason or reason
        self.wake()

    def close(self) -> None:
        """Let go of all memory; what was lent keeps its own."""
        self.abort("the session was closed")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # -- rings --------------------------------------------------------------------------------------------------

    def _reclaim(self, to: int, ring: int, counterpart: int) -> None:
        """Take back the blocks of messages that their receiver has done with; wait where too many are under way."""
        blocks, theirs = self._sent[ring], self.segments[to]

        def reclaim() -> bool | None:
            done = theirs.taken(counterpart)
            while self._first[ring] < done:
                self._first[ring] += 1
                self.arena.give(blocks.popleft())
            return True if len(blocks) < RING else None

        if reclaim() is None:
            self.wait(reclaim)

    def _collect(self, source: int, which: int) -> None:
        """Put whatever has come from one peer where it will be found."""
        theirs, mine, sender = lane(self.rank, which), lane(source, which), self.segments[source]
        while self._read[mine] < sender.written(theirs):
            index = self._read[mine]
            kind, group, number, block, *layout = sender.entry(theirs, index)
            label, tensor = Label(Kind(kind), group, number), sender.view(block, Layout.decode(tuple(layout)))
            message = Message(source, label, tensor, lambda index=index: self._release(source, which, index))  # type: ignore[misc]
            self._read[mine] += 1
            if label.kind is Kind.REQUEST:
                self._requests.append(message)
            else:
                self._inbox[source, label].append(message)

    def _release(self, source: int, which: int, index: int) -> None:
        ring = lane(source, which)
        released, count = self._released[ring], self.segment.taken(ring)
        released.add(index)
        before = count
        while count in released:
            released.remove(count)
            count += 1
        if count != before:
            self.segment.take(ring, count)
            if len(released) == 0 and count - before >= RING // 2:
                self._notifiers[source][MAIN].notify()


def bits_of(weight: float) -> int:
    """Return the bits of a weight as an integer."""
    (bits,) = struct.unpack("q", struct.pack("d", weight))
    return int(bits)


def weight_of(bits: int) -> float:
    """Return the weight of which these are the bits."""
    (weight,) = struct.unpack("d", struct.pack("q", bits))
    return float(weight)
