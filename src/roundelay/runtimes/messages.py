"""What ranks send each other: tensors with a layout and a label, memory for them, and calls of collectives."""

from __future__ import annotations

import enum
import math
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundelay.errors import Mismatch

T = TypeVar("T")
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
OPERATIONS = ("mean", "gather", "broadcast")
CALL_WORDS = MAX_DIMENSIONS + 4
_FLOAT, _INTEGER = struct.Struct("d"), struct.Struct("q")


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


def raw_bytes(x: Tensor) -> Tensor:
    """Return the bytes of a contiguous CPU tensor, as a view."""
    return x.reshape(-1).view(torch.uint8)


class Blanks(Generic[T]):
    """Memory that was given out to be filled and then sent; ``T`` is how the transport finds it again."""

    def __init__(self) -> None:
        self._given: dict[int, tuple[Layout, T]] = {}

    def give(self, x: Tensor, memory: T) -> Tensor:
        """Remember whose memory ``x`` is, and return ``x``."""
        if x.numel():
            self._given[x.data_ptr()] = (Layout.of(x), memory)
        return x

    def take(self, x: Tensor) -> T | None:
        """Return the memory that ``x`` is all of, if it was given out; it is given back by this."""
        layout, memory = self._given.get(x.data_ptr(), (None, None)) if self._given else (None, None)
        if layout is None or layout != Layout.of(x):
            return None
        del self._given[x.data_ptr()]
        return memory


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


# -- messages --------------------------------------------------------------------------------------------------------


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
    """The number of the exchange with this peer, of the request, or of the collective."""


HEADER = struct.Struct("<4sqqq8q")
"""What is sent before a tensor: a magic word, the label, the layout."""
MAGIC = b"RDLY"


@dataclass(slots=True)
class Message:
    """A received tensor; its memory belongs to the transport until `release` is called."""

    source: int
    """The sender's rank in the world."""
    label: Label
    tensor: Tensor
    release: Callable[[], None]


class Inbox:
    """Messages that have arrived and were not yet received; requests in the order of their arrival."""

    def __init__(self) -> None:
        self._messages: dict[tuple[int, Label], deque[Message]] = defaultdict(deque)
        self._requests: deque[Message] = deque()

    def put(self, message: Message) -> None:
        """Add a message."""
        if message.label.kind is Kind.REQUEST:
            self._requests.append(message)
        else:
            self._messages[message.source, message.label].append(message)

    def take(self, source: int, label: Label) -> Message | None:
        """Return and remove the oldest message of this sender and label, if there is one."""
        waiting = self._messages.get((source, label))
        if not waiting:
            return None
        message = waiting.popleft()
        if not waiting:
            del self._messages[source, label]
        return message

    @property
    def has_requests(self) -> bool:
        """Whether a request has arrived."""
        return bool(self._requests)

    def take_request(self) -> Message | None:
        """Return and remove the oldest request, if there is one."""
        return self._requests.popleft() if self._requests else None


class Transport(Protocol):
    """Point-to-point messages among all members of one generation.

    Ranks are those of the whole world.  Sending copies at once, except from memory that `blank` returned.  All methods
    except `wait` and `abort` are called by the thread that holds the strategy lock, or by the one thread that waits for
    messages of that kind.
    """

    rank: int
    size: int
    arrived: float | None
    """When the beginning of what is waited for arrived; ``None`` if it has not, or if that cannot be known."""

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Send ``x``; return the number of bytes sent."""

    def blank(self, like: Tensor) -> Tensor:
        """Return memory of the layout of ``like`` for one message; `send` does not copy what is in it."""

    def receive(self, source: int, label: Label) -> Message | None:
        """Return the oldest message of this sender and label, if one has arrived."""

    def next_request(self) -> Message | None:
        """Return the oldest request of any sender, if one has arrived."""

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        """Block until ``check``, called again after each arrival, returns something; raise if aborted."""

    def wake(self) -> None:
        """Let all waiting threads of this process check again."""

    def abort(self, reason: str) -> None:
        """Let all waiting threads, now and later, raise `LearnerLost`."""

    def close(self) -> None:
        """Free all resources."""


# -- collectives -----------------------------------------------------------------------------------------------------


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
