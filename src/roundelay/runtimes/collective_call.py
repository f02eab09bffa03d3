"""What a rank calls when it begins a collective; ranks compare it before they use each other's tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from roundelay.errors import Mismatch
from roundelay.runtimes.tensor_layout import MAX_DIMENSIONS, Layout

__all__ = ["CALL_WORDS", "CollectiveCall"]

OPERATIONS = ("mean", "gather", "broadcast")
CALL_WORDS = MAX_DIMENSIONS + 4
_FLOAT, _INTEGER = struct.Struct("d"), struct.Struct("q")


class CollectiveCall(NamedTuple):
    """One rank's call of a collective."""

    operation: str
    layout: Layout
    argument: float = 0.0
    """A mean's weight, or a broadcast's root."""

    @classmethod
    def of(cls, operation: str, x: Tensor, argument: float = 0.0) -> CollectiveCall:
        """Describe the call of an operation with ``x``."""
        return cls(operation, Layout.of(x), argument)

    def encode(self) -> tuple[int, ...]:
        """Write it as `CALL_WORDS` integers; the argument keeps its bits."""
        (argument,) = _INTEGER.unpack(_FLOAT.pack(self.argument))
        return (OPERATIONS.index(self.operation), argument, *self.layout.encode())

    @classmethod
    def decode(cls, words: Sequence[int]) -> CollectiveCall:
        """Read what `encode` wrote."""
        (argument,) = _FLOAT.unpack(_INTEGER.pack(words[1]))
        return cls(OPERATIONS[words[0]], Layout.decode(tuple(words[2:])), argument)

    def check(self, theirs: CollectiveCall, number: int, *, rank: int, other: int) -> None:
        """Raise `Mismatch` if the call of rank ``other`` is not of the same collective as ours."""
        mine = self.layout
        same = theirs.operation == self.operation and theirs.layout.dtype == mine.dtype
        same = same and (self.operation == "gather" or theirs.layout.shape == mine.shape)
        if not same or (self.operation == "broadcast" and theirs.argument != self.argument):
            raise Mismatch(f"collective {number}: rank {other} called {theirs}, rank {rank} called {self}")

    def __str__(self) -> str:
        root = f", root={int(self.argument)}" if self.operation == "broadcast" else ""
        return f"{self.operation}({self.layout.shape} {str(self.layout.dtype).removeprefix('torch.')}{root})"
