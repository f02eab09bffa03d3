"""One learner's memory that all learners on its host map: its layout, and how to wait for a change.

Only the owner writes to a segment; all others read it, and change its notifiers.  There is no lock, because a killed
process would hold it forever.  Data is written first and its counter is advanced after it, so that a killed writer
never publishes half a vector.  This relies on stores becoming visible in their order, as on x86.

A segment is a file without a name: nothing is left of it when its last process ends, even by a kill.  It is far larger
than needed, so that it is never mapped again; only pages that were written take memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections import defaultdict

import torch
from torch import Tensor

from roundelay.errors import CommunicationError
from roundelay.runtimes.messages import Layout

SEGMENT_BYTES = 1 << 36
NAME = "roundelay"
LINE = 64
RING = 256
"""How many messages, or collectives, may be under way."""
ENTRY = struct.Struct("13q")
ENTRY_BYTES = 128
RING_BYTES = 2 * LINE + RING * ENTRY_BYTES
"""A ring: number of entries written, number taken from the counterpart, the entries."""
NONCE, NOTIFIERS, DIRECTORY, LANES_AT = 0, LINE, 4096, 1 << 20
DIRECTORY_ENTRIES = (LANES_AT - DIRECTORY) // 16 - 1
NUM_LANES = 2
MAIN, REQUESTS = range(NUM_LANES)
FUTEX = {"x86_64": 202}
FUTEX_WAIT, FUTEX_WAKE, ALL_WAITERS = 0, 1, 2**31 - 1


def usable() -> bool:
    """Return whether this machine keeps the order of stores, and has futexes and files without a name."""
    return sys.platform == "linux" and platform.machine() in FUTEX


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Notifier:
    """A word that changes whenever something happens that its owner waits for; the owner may sleep on it.

    Every `notify` writes a new value, so that an owner that reads the word and sleeps after misses none.
    """

    def __init__(self, segment: Segment, lane: int, sender: int) -> None:
        self._word, self._index = segment.words, (NOTIFIERS + lane * LINE) // 4
        self._address = ctypes.c_void_p(segment.address + NOTIFIERS + lane * LINE)
        self._number, self._next_value = FUTEX[platform.machine()], (sender + 1) << 22
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall  # releases the interpreter's lock

    def read(self) -> int:
        """Return the word."""
        return self._word[self._index]

    def notify(self) -> None:
        """Wake all sleeping threads."""
        self._next_value = self._next_value & ~0x3FFFFF | (self._next_value + 1) & 0x3FFFFF
        self._word[self._index] = self._next_value
        self._syscall(self._number, self._address, FUTEX_WAKE, ALL_WAITERS, None, None, 0)

    def sleep(self, value: int, timeout_seconds: float) -> None:
        """Sleep until the word is no longer ``value``, until the next `notify`, or for so many seconds."""
        timeout = _Timespec(int(timeout_seconds), int(timeout_seconds % 1 * 1e9))
        self._syscall(self._number, self._address, FUTEX_WAIT, ctypes.c_uint32(value), ctypes.byref(timeout), None, 0)


class Segment:
    """A mapped segment, of this or of another learner."""

    def __init__(self, path: str) -> None:
        try:
            self.bytes = torch.from_file(path, shared=True, size=SEGMENT_BYTES, dtype=torch.uint8)
        except RuntimeError as error:
            raise CommunicationError(f"{path}: memory cannot be shared: {str(error).splitlines()[0]}") from error
        self.address: int = self.bytes.data_ptr()
        self.raw = self.bytes.numpy().data
        self.words, self.counters = self.raw.cast("I"), self.raw.cast("q")
        self._views: dict[tuple[int, Layout], Tensor] = {}

    @classmethod
    def create(cls) -> tuple[Segment, int]:
        """Make a segment; return it, and the file that others can open until it is closed."""
        file = os.memfd_create(NAME)
        os.fchmod(file, 0o600)
        os.ftruncate(file, SEGMENT_BYTES)
        segment = cls(f"/proc/self/fd/{file}")
        segment.raw[NONCE : NONCE + 8] = os.urandom(8)
        return segment, file

    @classmethod
    def open(cls, path: str) -> Segment:
        """Map another learner's segment; refuse any other file, since mapping makes it longer and writes to it."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise CommunicationError(f"{path}: memory cannot be shared: {error.strerror}") from error
        try:
            about, name = os.fstat(file), os.readlink(f"/proc/self/fd/{file}")
            mine = name.startswith(f"/memfd:{NAME} ") and about.st_uid == os.geteuid()
            if not mine or about.st_size != SEGMENT_BYTES:
                raise CommunicationError(f"{path}: not the memory of a learner")
            return cls(f"/proc/self/fd/{file}")
        finally:
            os.close(file)

    @property
    def nonce(self) -> str:
        """A random value that identifies this segment."""
        return bytes(self.raw[NONCE : NONCE + 8]).hex()

    def view(self, offset: int, layout: Layout) -> Tensor:
        """Return the tensor at ``offset``."""
        view = self._views.get((offset, layout))
        if view is None:
            if len(self._views) > 4 * RING:
                self._views.clear()
            view = self.bytes[offset : offset + layout.nbytes].view(layout.dtype).view(layout.shape)
            self._views[offset, layout] = view
        return view

    # -- rings --------------------------------------------------------------------------------------------------

    def written(self, ring: int) -> int:
        """Return the number of entries that the owner has written to a ring."""
        return self.counters[ring // 8]

    def taken(self, ring: int) -> int:
        """Return the number of entries of this ring's counterparts that the owner no longer needs."""
        return self.counters[(ring + LINE) // 8]

    def take(self, ring: int, count: int) -> None:
        """Set `taken`; called by the owner."""
        self.counters[(ring + LINE) // 8] = count

    def write(self, ring: int, index: int, *entry: int) -> None:
        """Write an entry, then advance `written`; called by the owner."""
        ENTRY.pack_into(self.raw, ring + 2 * LINE + index % RING * ENTRY_BYTES, *entry)
        self.counters[ring // 8] = index + 1

    def entry(self, ring: int, index: int) -> tuple[int, ...]:
        """Read an entry."""
        return ENTRY.unpack_from(self.raw, ring + 2 * LINE + index % RING * ENTRY_BYTES)

    # -- the directory of groups --------------------------------------------------------------------------------

    def enter(self, key: int, ring: int) -> None:
        """Publish the offset of the ring of a group's collectives; called by the owner."""
        at = DIRECTORY // 8
        count = self.counters[at]
        if count >= DIRECTORY_ENTRIES:
            raise CommunicationError(f"{count} groups were split off; there is no room for more")
        self.counters[at + 2 + 2 * count], self.counters[at + 3 + 2 * count] = key, ring
        self.counters[at] = count + 1

    def find(self, key: int) -> int | None:
        """Return the offset of the ring of a group's collectives, if its owner has published it."""
        at = DIRECTORY // 8
        for index in range(self.counters[at] - 1, -1, -1):
            if self.counters[at + 2 + 2 * index] == key:
                return self.counters[at + 3 + 2 * index]
        return None


def lane(peer: int, which: int) -> int:
    """Return the offset of the ring of messages to and from ``peer``."""
    return LANES_AT + (NUM_LANES * peer + which) * RING_BYTES


class Arena:
    """Blocks of the rest of our own segment, kept by size for reuse: fresh pages cost as much as the copy."""

    def __init__(self, size: int) -> None:
        self._top = -(-lane(size, 0) // 4096) * 4096
        self._free: dict[int, list[int]] = defaultdict(list)
        self._sizes: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        """Return the offset of a block."""
        step = max(LINE, 1 << max(0, nbytes.bit_length() - 4))
        size = -(-max(nbytes, 1) // step) * step
        if free := self._free[size]:
            return free.pop()
        offset, self._top = self._top, self._top + size
        if self._top > SEGMENT_BYTES:
            raise CommunicationError(f"shared memory of {SEGMENT_BYTES >> 30} GiB is full")
        self._sizes[offset] = size
        return offset

    def give(self, offset: int) -> None:
        """Free a block."""
        self._free[self._sizes[offset]].append(offset)
