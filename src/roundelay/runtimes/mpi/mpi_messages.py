"""Messages over MPI: a header that describes a tensor, the tensor's bytes, and buffers for reuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundelay.runtimes.tensor_layout import Layout

__all__ = ["HEADER_WORDS", "Buffers", "Bytes", "MessageHeader", "tensor_in"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

HEADER_WORDS = 16

OPERATIONS = ("mean", "gather", "broadcast")


@dataclass(frozen=True)
class MessageHeader:
    """The description of a message, or of a call of a collective."""

    operation: str
    sequence: int
    rank: int
    """The sender's rank, in the communicator that it used."""
    layout: Layout
    argument: float = 0.0
    """A mean's weight, or a broadcast's root."""

    @classmethod
    def of(cls, operation: str, x: Tensor, *, sequence: int, rank: int, argument: float = 0.0) -> MessageHeader:
        """Describe ``x``."""
        return cls(operation, sequence, rank, Layout.of(x), argument)

    def words(self) -> npt.NDArray[np.int64]:
        """Return it as integers."""
        words, layout = np.zeros(HEADER_WORDS, np.int64), self.layout.encode()
        words[:3] = OPERATIONS.index(self.operation), self.sequence, self.rank
        words[3:4].view(np.float64)[0] = self.argument
        words[4 : 4 + len(layout)] = layout
        return words

    @classmethod
    def read(cls, words: npt.NDArray[np.int64]) -> MessageHeader:
        """Read what `words` returned."""
        operation, sequence, rank = (int(word) for word in words[:3])
        layout = Layout.decode(tuple(int(word) for word in words[4:]))
        return cls(OPERATIONS[operation], sequence, rank, layout, float(words[3:4].view(np.float64)[0]))

    def __str__(self) -> str:
        root = f", root={int(self.argument)}" if self.operation == "broadcast" else ""
        return f"{self.operation}({self.layout.shape} {str(self.layout.dtype).removeprefix('torch.')}{root})"

    def matches(self, other: MessageHeader) -> bool:
        """Return whether these calls of two ranks fit together as one collective."""
        mine, theirs = self.layout, other.layout
        same_layout = mine.dtype == theirs.dtype and (self.operation == "gather" or mine.shape == theirs.shape)
        same_root = self.operation != "broadcast" or self.argument == other.argument
        return self.operation == other.operation and same_layout and same_root


class Buffers:
    """Memory for reuse: fresh pages cost about as much as the copy into them."""

    def __init__(self, keep: int = 32) -> None:
        self._keep = keep
        self._free: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """Return a buffer of ``size`` bytes or somewhat more."""
        fitting = [k for k, buffer in enumerate(self._free) if size <= buffer.size <= 2 * size + 4096]
        if fitting:
            return self._free.pop(min(fitting, key=lambda k: self._free[k].size))
        return np.empty(max(size, 1), np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Return a buffer that is no longer used."""
        self._free.append(buffer)
        if len(self._free) > self._keep:
            del self._free[0]


def tensor_in(buffer: Bytes, layout: Layout, offset: int = 0) -> Tensor:
    """Return a tensor in the memory of ``buffer``."""
    if not layout.nbytes:
        return torch.empty(layout.shape, dtype=layout.dtype)
    memory: Any = buffer  # numpy arrays are buffers, which torch's annotations do not know
    count = layout.nbytes // layout.dtype.itemsize
    return torch.frombuffer(memory, dtype=layout.dtype, count=count, offset=offset).view(layout.shape)
