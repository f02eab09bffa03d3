"""Where each learner of a user loop writes how many acts it has done, for all to read.

On one host that is a word of memory that all learners map, so that a step costs no message.  Elsewhere it is a counter
of the run's store.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from roundelay.runtimes.processes import environment
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.training.member import Member

COUNT_BITS = 28
COUNT = (1 << COUNT_BITS) - 1
WAITING = 1 << 2 * COUNT_BITS
LOOP_BITS = 6
NAME = "roundelay acts"


class Done(NamedTuple):
    """How many acts a learner has done since all began a loop."""

    steps: int = 0
    means: int = 0
    waiting: bool = False
    """Whether it waits in its last step until all others have begun it too."""

    @property
    def word(self) -> int:
        """All in one number, which is written and read as a whole."""
        return self.steps & COUNT | (self.means & COUNT) << COUNT_BITS | (WAITING if self.waiting else 0)

    @classmethod
    def of(cls, word: int) -> Self:
        """Return what a number says."""
        return cls(word & COUNT, word >> COUNT_BITS & COUNT, bool(word & WAITING))


class Board(Protocol):
    """What the learners have done, by their numbers."""

    async def write(self, mine: Done) -> None:
        """Write what we have done."""

    async def read(self, others: Sequence[int]) -> list[Done]:
        """Return what these have done."""


class StoreBoard:
    """Counters of the run's store; they work wherever learners do."""

    def __init__(self, member: Member, loop: int) -> None:
        self._member, self._name, self._written = member, f"acts {loop}", 0

    async def write(self, mine: Done) -> None:
        """Write what we have done."""
        more, self._written = mine.word - self._written, mine.word
        if more:
            await self._member.runtime.fetch_add(f"{self._name} {self._member.learner.index}", more)

    async def read(self, others: Sequence[int]) -> list[Done]:
        """Return what these have done."""
        fetch = self._member.runtime.fetch_add
        return [Done.of(await fetch(f"{self._name} {other}", 0)) for other in others]


class SharedWords:
    """A word of ours that others on this host read, and theirs; a file without a name, of which nothing is left."""

    def __init__(self) -> None:
        self._file = os.memfd_create(NAME)
        os.ftruncate(self._file, mmap.PAGESIZE)
        self._mine = memoryview(mmap.mmap(self._file, mmap.PAGESIZE)).cast("q")
        self._theirs: dict[int, memoryview] = {}

    @staticmethod
    def usable(member: Member) -> bool:
        """Return whether words can take the place of the store; after a loss, learners change their numbers."""
        return not member.runtime.elastic and member.num_learners > 1 and segments.usable()

    @property
    def address(self) -> list[str | int]:
        """What another learner opens."""
        return [environment.host_name(), os.getpid(), self._file]

    def open(self, addresses: Sequence[Sequence[str | int] | None]) -> bool:
        """Map the words of all learners; return whether that was possible."""
        if any(each is None or each[0] != self.address[0] for each in addresses):
            return False
        try:
            for learner, each in enumerate(addresses):
                assert each is not None
                file = os.open(f"/proc/{each[1]}/fd/{each[2]}", os.O_RDONLY)
                self._theirs[learner] = memoryview(mmap.mmap(file, mmap.PAGESIZE, prot=mmap.PROT_READ)).cast("q")
                os.close(file)
        except OSError:
            return False
        return True

    def board(self, loop: int) -> SharedBoard:
        """Return the board of a loop, on which nobody has done anything yet."""
        return SharedBoard(self._mine, self._theirs, loop)

    def close(self) -> None:
        """Free our file; the word stays as long as somebody reads it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SharedBoard:
    """Words in memory; a word of another loop says that its owner has not begun this one."""

    def __init__(self, mine: memoryview, theirs: dict[int, memoryview], loop: int) -> None:
        self._mine, self._theirs = mine, theirs
        self._loop = (loop % (1 << LOOP_BITS)) << 2 * COUNT_BITS + 1

    async def write(self, mine: Done) -> None:
        """Write what we have done."""
        self._mine[0] = self._loop | mine.word

    async def read(self, others: Sequence[int]) -> list[Done]:
        """Return what these have done."""
        words = [int(self._theirs[other][0]) for other in others]
        return [Done.of(word) if word ^ self._loop < 2 * WAITING else Done() for word in words]
