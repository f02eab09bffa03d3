"""A message between two learners: a tensor and a label that says which message it is."""

from __future__ import annotations

import enum
import struct
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor

__all__ = ["HEADER", "MAGIC", "Inbox", "Kind", "Label", "Message", "Transport"]

T = TypeVar("T")


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

    Ranks are those of the whole world.  Sending copies at once.  All methods except `wait` and `abort` are called by
    the thread that holds the strategy lock, or by the one thread that waits for messages of that kind.
    """

    rank: int
    size: int
    arrived: float | None
    """When the beginning of what is waited for arrived; ``None`` if it has not, or if that cannot be known."""

    def send(self, to: int, label: Label, x: Tensor) -> int:
        """Send ``x``; return the number of bytes sent."""

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
