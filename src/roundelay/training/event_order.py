"""The order of one learner's events: recorded on real processes, followed by the simulator in a replay.

Four kinds of events decide a learner's weights: it claimed a minibatch (``c12``), its gradient was complete (``g``), an
operation that it awaited was complete (``r``), it served the request of a rank (``s3``).  Nothing else changes the
learner between two events, so a run with the same order does the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import DataError
from roundelay.files import write_bytes
from roundelay.learner import Learner
from roundelay.strategy import Strategy
from roundelay.training.communicator_wrapper import WrappedCommunicator

T = TypeVar("T")


class Order(Protocol):
    """What the training loop calls at each event."""

    async def mark(self, what: str) -> None:
        """Record an event; in a replay, wait for its turn."""

    async def claimed(self, base: int) -> int:
        """Record a claim and return it; in a replay, return the recorded one."""

    def serving(self, strategy: Strategy) -> Strategy:
        """Return the strategy that replies to requests."""


class RecordedOrder:
    """Records the order."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def mark(self, what: str) -> None:
        """Record an event."""
        self.tokens.append(what)

    async def claimed(self, base: int) -> int:
        """Record a claim."""
        self.tokens.append(f"c{base}")
        return base

    def serving(self, strategy: Strategy) -> Strategy:
        """Return ``strategy``, with each request recorded."""
        return _Serving(strategy, self.tokens)

    def save(self, path: Path) -> None:
        """Write the order to a file."""
        write_bytes(path, " ".join(self.tokens).encode() + b"\n")


def read_order(path: Path) -> list[str]:
    """Read what `RecordedOrder.save` wrote."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.endswith("\n"):
        raise DataError(f"{path}: incomplete: the run was killed before it ended")
    tokens = text.split()
    for index, token in enumerate(tokens):
        if token not in ("g", "r") and not (token[0] in "cs" and token[1:].isdecimal()):
            raise DataError(f"{path}: token {index} is {token!r}; expected one like c12, g, r or s3")
    return tokens


class _Serving(Strategy):
    """A strategy whose requests are recorded."""

    def __init__(self, strategy: Strategy, tokens: list[str]) -> None:
        self._strategy, self._tokens = strategy, tokens

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        self._tokens.append(f"s{source}")
        return self._strategy.serve(learner, theirs, source)


def watch(comm: Communicator, order: Order | None) -> Communicator:
    """Return ``comm``, with each awaited operation marked in ``order``."""
    return WrappedCommunicator(comm, lambda awaited: _Marked(awaited, order)) if order is not None else comm


class _Marked(Generic[T]):
    def __init__(self, awaited: Awaitable[T], order: Order) -> None:
        self._awaited, self._order = awaited, order

    def __await__(self) -> Generator[Any, Any, T]:
        result = yield from self._awaited.__await__()
        yield from self._order.mark("r").__await__()
        return result
