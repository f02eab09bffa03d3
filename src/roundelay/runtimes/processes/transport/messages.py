"""What one message between two learners is: a tensor and a header that says which."""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

__all__ = ["HEADER", "MAGIC", "Kind", "Label", "Layout", "Message", "Transport"]

T = TypeVar("T")

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


class Kind(enum.IntEnum):
    """What a message is for."""

    EXCHANGE = 1
    REQUEST = 2
    REPLY = 3
    GATHER = 4
    CHECK = 5
    CLOSE = 6


class Label(NamedTuple):
    """Which message this is, between one sender and one receiver."""

    kind: Kind
    group: int
    """The key of the communicator that was used."""
    number: int
    """Which of its kind: a request's and its reply's number, a collective's; 0 where the order says it."""


class Layout(NamedTuple):
    """The type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, x: Tensor) -> Layout:
        """Describe ``x``; one of very many dimensions travels flat."""
        return cls(x.dtype, tuple(x.shape) if x.dim() <= MAX_DIMENSIONS else (x.numel(),))

    @property
    def nbytes(self) -> int:
        """How long the tensor is."""
        return math.prod(self.shape) * self.dtype.itemsize

    def encode(self) -> tuple[int, ...]:
        """Write it as `MAX_DIMENSIONS` + 2 integers."""
        blanks = [0] * (MAX_DIMENSIONS - len(self.shape))
        return (DTYPES.index(self.dtype), len(self.shape), *self.shape, *blanks)

    @classmethod
    def decode(cls, numbers: tuple[int, ...]) -> Layout:
        """Read what `encode` wrote."""
        return cls(DTYPES[numbers[0]], tuple(numbers[2 : 2 + numbers[1]]))


HEADER = struct.Struct("<4sqqq8q")
"""Before a tensor that travels: a magic word, the label, the layout."""
MAGIC = b"RDLY"


@dataclass(slots=True)
class Message:
    """A tensor that has come; its memory is the transport's, which wants it back."""

    source: int
    """The sender's rank in the world."""
    label: Label
    tensor: Tensor
    release: Callable[[], None]


class Transport(Protocol):
    """Point-to-point messages among all who are here in one membership epoch.

    Ranks are those of the whole world.  Sending copies at once.  All but `wait` and `abort` are called by whoever holds
    the baton, or by the one thread that waits for messages of that kind.
    """

    rank: int
    size: int

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Send ``x``; return how many bytes that is."""

    def receive(self, source: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if it has come."""

    def next_request(self) -> Message | None:
        """Return the oldest request, whoever sent it, if one has come."""

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        """Block until ``check``, called again after whatever comes, returns something; raise when aborted."""

    def wake(self) -> None:
        """Have all who wait in this process check again."""

    def abort(self, reason: str) -> None:
        """Have all who wait, now and later, raise `LearnerLost`."""

    def close(self) -> None:
        """Give everything back."""


def raw_bytes(x: Tensor) -> Tensor:
    """Return the bytes of a contiguous CPU tensor, as a view."""
    return x.reshape(-1).view(torch.uint8)
