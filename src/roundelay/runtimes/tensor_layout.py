"""The type and shape of a tensor, as integers for headers, and its bytes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

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


def raw_bytes(x: Tensor) -> Tensor:
    """Return the bytes of a contiguous CPU tensor, as a view."""
    return x.reshape(-1).view(torch.uint8)
