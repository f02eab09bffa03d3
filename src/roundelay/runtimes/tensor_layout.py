"""The type and shape of a tensor, as integers for headers, its bytes, and memory for them."""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Buffers", "Bytes", "Layout", "raw_bytes"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
MAX_DIMENSIONS = 6
KEPT_BUFFERS = 32


class Layout(NamedTuple):
    """The type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, x: Tensor) -> Layout:
        """Describe ``x``; a tensor of more than `MAX_DIMENSIONS` dimensions becomes flat."""
        return cls(x.dtype, tuple(x.shape) if x.dim() <= MAX_DIMENSIONS else (x.numel(),))

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def encode(self) -> tuple[int, ...]:
        """Write it as `MAX_DIMENSIONS` + 2 integers."""
        padding = [0] * (MAX_DIMENSIONS - len(self.shape))
        return (DTYPES.index(self.dtype), len(self.shape), *self.shape, *padding)

    @classmethod
    def decode(cls, numbers: tuple[int, ...]) -> Layout:
        """Read what `encode` wrote."""
        return cls(DTYPES[numbers[0]], tuple(numbers[2 : 2 + numbers[1]]))

    def view(self, memory: Bytes, offset: int = 0) -> Tensor:
        """Return the tensor that begins at byte ``offset`` of ``memory``."""
        if not self.nbytes:
            return torch.empty(self.shape, dtype=self.dtype)
        buffer: Any = memory  # numpy arrays are buffers, which torch's annotations do not know
        return torch.frombuffer(buffer, dtype=self.dtype, count=math.prod(self.shape), offset=offset).view(self.shape)


class Buffers:
    """Memory for messages, kept for reuse by any thread: fresh pages cost about as much as the copy into them.

    It is numpy's, which asks for huge pages: in torch's, messages of 16 MB took 1.6 times as long.
    """

    def __init__(self) -> None:
        self._free: list[Bytes] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Bytes:
        """Return a buffer of ``nbytes`` bytes or somewhat more."""
        with self._lock:
            fitting = [k for k, buffer in enumerate(self._free) if nbytes <= buffer.nbytes <= 2 * nbytes + 4096]
            if fitting:
                return self._free.pop(min(fitting, key=lambda k: self._free[k].nbytes))
        return np.empty(max(nbytes, 1), np.uint8)

    def give(self, buffer: Bytes) -> None:
        """Keep a buffer that is no longer used; if there are many, free the one that was not used for longest."""
        with self._lock:
            self._free.append(buffer)
            if len(self._free) > KEPT_BUFFERS:
                del self._free[0]


def raw_bytes(x: Tensor) -> Tensor:
    """Return the bytes of a contiguous CPU tensor, as a view."""
    return x.reshape(-1).view(torch.uint8)
