"""Shared memory without names: segments, blocks and bells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from roundelay.errors import CommunicationError
from roundelay.runtimes.messages import Layout
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.shared_memory_messages import SharedMemoryTransport
from roundelay.runtimes.processes.transport.shared_memory_segments import Arena, Notifier, Segment

needs_sharing = pytest.mark.skipif(not segments.usable(), reason="memory is shared on Linux on x86-64 only")


@needs_sharing
def test_nothing_has_a_name() -> None:
    before = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    post = SharedMemoryTransport()
    post.segment.bytes[:100].fill_(1)
    assert (set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()) == before
    post.close()


@needs_sharing
def test_a_segment_seen_twice() -> None:
    ours, file = segments.Segment.create()
    theirs = Segment(f"/proc/{os.getpid()}/fd/{file}")
    os.close(file)
    assert theirs.nonce == ours.nonce
    ours.write(1 << 20, 5, *range(13))
    assert theirs.written(1 << 20) == 6
    assert theirs.entry(1 << 20, 5) == tuple(range(13))
    layout = Layout(torch.float64, (3, 2))
    ours.view(1 << 21, layout).fill_(2.5)
    assert torch.equal(theirs.view(1 << 21, layout), torch.full((3, 2), 2.5, dtype=torch.float64))
    ours.enter(77, 4096)
    ours.enter(78, 8192)
    assert (theirs.find(77), theirs.find(78), theirs.find(79)) == (4096, 8192, None)


@needs_sharing
def test_a_bell_that_rang_before_does_not_let_us_sleep() -> None:
    segment, file = segments.Segment.create()
    os.close(file)
    bells = [Notifier(segment, 0, ringer) for ringer in range(2)]
    seen = set()
    for turn in range(100):
        value = bells[0].read()
        bells[turn % 2].notify()
        bells[0].sleep(value, 60.0)  # returns at once: the word is another
        seen.add(bells[0].read())
    assert len(seen) == 100


def test_an_arena_gives_blocks_again() -> None:
    arena = Arena(4)
    blocks = [arena.take(1_000_000) for _ in range(3)]
    assert all(block % 64 == 0 for block in blocks)
    assert min(abs(a - b) for a in blocks for b in blocks if a != b) >= 1_000_000
    arena.give(blocks[1])
    assert arena.take(999_999) == blocks[1]


@needs_sharing
def test_a_wrong_segment_is_refused() -> None:
    post, other = SharedMemoryTransport(), SharedMemoryTransport()
    with pytest.raises(CommunicationError, match="not the memory of rank 1"):
        post.connect(0, [post.address, {**other.address, "nonce": "00"}])
    with pytest.raises(CommunicationError, match="cannot be shared"):
        Segment("/proc/1/fd/no such file")
    post.close()
    other.close()


def test_only_the_memory_of_a_learner_is_mapped(tmp_path: Path) -> None:
    """Mapping makes a file longer, so a path from a store that others can write must not name any file."""
    path = tmp_path / "precious"
    path.write_bytes(b"kept")
    for wrong in (path, tmp_path / "missing", tmp_path):
        with pytest.raises(CommunicationError, match=r"not the memory of a learner|cannot be shared"):
            segments.Segment.open(str(wrong))
    assert path.read_bytes() == b"kept"
    segment, file = segments.Segment.create()
    assert segments.Segment.open(f"/proc/self/fd/{file}").nonce == segment.nonce
    os.close(file)
