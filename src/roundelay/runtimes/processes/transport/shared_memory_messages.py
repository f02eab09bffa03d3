"""Messages through shared memory, for learners on one host."""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from roundelay.errors import CommunicationError, LearnerLost
from roundelay.runtimes.messages import Blanks, Inbox, Kind, Label, Layout, Message
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

T = TypeVar("T")
LONGEST_SLEEP = 0.05  # a notification wakes us sooner


class SharedMemoryTransport:
    """A `Transport` in memory: a message stays in its sender's segment until its receiver releases it."""

    def __init__(self) -> None:
        self.segment, self._file = Segment.create()
        self.rank, self.size = 0, 1
        self.arrived: float | None = None  # it cannot be known
        self.segments: list[Segment] = []
        self.arena: Arena
        self._notifiers: list[list[Notifier]] = []
        self._end_reason: str | None = None
        self._sent: dict[int, deque[int]] = defaultdict(deque)  # by ring: blocks of messages under way
        self._first: dict[int, int] = defaultdict(int)  # by ring: number of the first of them
        self._read: dict[int, int] = defaultdict(int)  # by ring: messages read
        self._released: dict[int, set[int]] = defaultdict(set)
        self._inbox = Inbox()
        self._blanks: Blanks[int] = Blanks()
        self._reading = threading.Lock()  # a thread that begins collectives receives too

    @property
    def address(self) -> dict[str, str]:
        """How other processes find our segment."""
        return {"path": f"/proc/{os.getpid()}/fd/{self._file}", "nonce": self.segment.nonce}

    def connect(self, rank: int, addresses: Sequence[dict[str, Any]]) -> None:
        """Map the segments of all members."""
        self.rank, self.size, self.arena = rank, len(addresses), Arena(len(addresses))
        for other, address in enumerate(addresses):
            segment = self.segment if other == rank else Segment.open(address["path"])
            if segment.nonce != address["nonce"]:
                raise CommunicationError(f"{address['path']}: not the memory of rank {other}")
            self.segments.append(segment)
        self._notifiers = [[Notifier(segment, which, rank) for which in range(NUM_LANES)] for segment in self.segments]

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Copy ``x`` into our segment, unless it is there, and tell ``to``."""
        which = REQUESTS if label.kind is Kind.REQUEST else MAIN
        ring, layout = lane(to, which), Layout.of(x)
        self._reclaim(to, ring, lane(self.rank, which))
        block, number = self._blanks.take(x), self.segment.written(ring)
        if block is None:
            block = self.arena.take(layout.nbytes)
            self.segment.view(block, layout).copy_(x)
        self._sent[ring].append(block)
        self.segment.write(ring, number, *label, block, *layout.encode(), 0)
        self._notifiers[to][which].notify()
        return layout.nbytes

    def blank(self, like: Tensor) -> Tensor:
        """Return a block of our segment, if the learner's memory is the processor's."""
        if like.device.type != "cpu":
            return torch.empty_like(like)
        layout = Layout.of(like)
        block = self.arena.take(layout.nbytes)
        return self._blanks.give(self.segment.view(block, layout), block)

    def receive(self, source: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if one has arrived."""
        with self._reading:
            self._collect(source, MAIN)
            return self._inbox.take(source, label)

    def next_request(self) -> Message | None:
        """Return the oldest request, if one has arrived."""
        for source in range(self.size):
            if source != self.rank:
                self._collect(source, REQUESTS)
        return self._inbox.take_request()

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        """Sleep on our notifier until ``check`` returns something."""
        notifier = self._notifiers[self.rank][REQUESTS if requests else MAIN]
        while True:
            value = notifier.read()
            result = check()
            if result is not None:
                return result
            if self._end_reason is not None:
                raise LearnerLost(self._end_reason)
            notifier.sleep(value, LONGEST_SLEEP)

    def notify(self, ranks: Sequence[int]) -> None:
        """Wake these ranks: a collective has progressed."""
        for rank in ranks:
            if rank != self.rank:
                self._notifiers[rank][MAIN].notify()

    def wake(self) -> None:
        """Let all waiting threads of this process check again."""
        for notifier in self._notifiers[self.rank] if self._notifiers else ():
            notifier.notify()

    def abort(self, reason: str) -> None:
        """Let all waiting threads raise."""
        self._end_reason = self._end_reason or reason
        self.wake()

    def close(self) -> None:
        """Close our segment; tensors that are still lent keep the memory alive."""
        self.abort("the session was closed")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # -- rings --------------------------------------------------------------------------------------------------

    def _reclaim(self, to: int, ring: int, counterpart: int) -> None:
        """Reuse the blocks of messages that ``to`` has released; wait if too many are under way."""
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
        """Put all messages that have arrived from one peer into the inbox."""
        theirs, mine, sender = lane(self.rank, which), lane(source, which), self.segments[source]
        while self._read[mine] < sender.written(theirs):
            index = self._read[mine]
            kind, group, number, block, *layout = sender.entry(theirs, index)
            label, tensor = Label(Kind(kind), group, number), sender.view(block, Layout.decode(tuple(layout)))
            message = Message(source, label, tensor, lambda index=index: self._release(source, which, index))  # type: ignore[misc]
            self._read[mine] += 1
            self._inbox.put(message)

    def _release(self, source: int, which: int, index: int) -> None:
        ring = lane(source, which)
        with self._reading:
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
