"""Operations on several flat vectors at once, in chunks that stay in the processor's cache.

A step of a strategy is bound by memory, not by arithmetic.  What three operations of torch read and write three times,
a chunk after another is read and written once.  Each element is computed as by the whole operations, to the bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 18  # four of them fit into a cache of 1 MB
_memcmp = ctypes.CDLL(None).memcmp  # twice as fast as torch.equal
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def chunks(vector: Tensor) -> Iterator[slice]:
    """Return the slices of a vector; a short vector, or one that is not in the processor's memory, is one chunk."""
    total, length = vector.numel(), CHUNK_BYTES // vector.element_size()
    if total <= 2 * length or vector.device.type != "cpu":
        yield slice(None)
        return
    for begin in range(0, total, length):
        yield slice(begin, min(begin + length, total))


def move_towards(weights: Tensor, mine: Tensor, theirs: Tensor, share: float, difference: Tensor) -> None:
    """Write ``difference`` = share (theirs - mine) and add it to ``weights``, which may be ``mine``."""
    for part in chunks(weights):
        here = difference[part]
        torch.sub(theirs[part], mine[part], out=here).mul_(share)
        weights[part].add_(here)


def add_change(weights: Tensor, now: Tensor, before: Tensor) -> None:
    """Add now - before to ``weights``, and make ``before`` equal to ``now``."""
    for part in chunks(weights):
        here, there = now[part], before[part]
        weights[part].add_(torch.sub(here, there, out=there))
        there.copy_(here)


def combine(weights: Tensor, own: float, others: Sequence[tuple[float, Tensor]]) -> None:
    """Replace ``weights`` by own * weights + the sum of share * theirs over ``others``."""
    for part in chunks(weights):
        here = weights[part].mul_(own)
        for share, theirs in others:
            here.add_(theirs[part], alpha=share)


def take_over(weights: Tensor, now: Tensor, before: Tensor) -> None:
    """Add now - before to ``weights``, and make ``now`` and ``before`` equal to them."""
    for part in chunks(weights):
        here, there = now[part], before[part]
        mine = weights[part].add_(torch.sub(here, there, out=there))
        here.copy_(mine)
        there.copy_(mine)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two vectors of one layout have the same bits; this stops at the first difference."""
    if a.device.type != "cpu" or not (a.is_contiguous() and b.is_contiguous()):
        return torch.equal(a, b)
    return bool(_memcmp(a.data_ptr(), b.data_ptr(), a.nbytes) == 0)


def copy_to(source: Tensor, *targets: Tensor) -> None:
    """Copy ``source`` to several vectors, reading it once."""
    for part in chunks(source):
        here = source[part]
        for target in targets:
            target[part].copy_(here)
