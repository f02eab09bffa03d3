"""In which order things happened to one learner: written down on real processes, kept to in the simulator.

A learner's weights depend on the order of few things: which minibatches it claimed (``c12``), when its gradient was
there (``g``), when a verb that it awaited was done (``r``), and when it served whom (``s3``).  Between two of them
nothing else touches the learner, so a run that keeps to the order does the same arithmetic.
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
    """What a training asks at every point that matters."""

    async def mark(self, what: str) -> None:
        """Let this happen now, or, where an order is kept to, when it is its turn."""

    async def claimed(self, base: int) -> int:
        """Return what was claimed: ``base``, or what it was in the order that is kept to."""

    def serving(self, strategy: Strategy) -> Strategy:
        """Return what answers requests."""


class RecordedOrder:
    """Writes the order down."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def mark(self, what: str) -> None:
        """Put it down."""
        self.tokens.append(what)

    async def claimed(self, base: int) -> int:
        """Put it down."""
        self.tokens.append(f"c{base}")
        return base

    def serving(self, strategy: Strategy) -> Strategy:
        """Return a strategy that puts down whom it serves."""
        return _Serving(strategy, self.tokens)

    def save(self, path: Path) -> None:
        """Write all of it to a file."""
        write_bytes(path, " ".join(self.tokens).encode() + b"\n")


def read_order(path: Path) -> list[str]:
    """Read what `WrittenOrder.save` wrote."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.endswith("\n"):
        raise DataError(f"{path}: the order was not written to its end")
    tokens = text.split()
    for place, token in enumerate(tokens):
        if token not in ("g", "r") and not (token[0] in "cs" and token[1:].isdecimal()):
            raise DataError(f"{path}: token {place} is {token!r}; there are c12, g, r and s3")
    return tokens


class _Serving(Strategy):
    """A strategy as requests see it."""

    def __init__(self, strategy: Strategy, tokens: list[str]) -> None:
        self._strategy, self._tokens = strategy, tokens

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        self._tokens.append(f"s{source}")
        return self._strategy.serve(learner, theirs, source)


def watch(comm: Communicator, order: Order | None) -> Communicator:
    """Return ``comm``, every awaited verb of which is marked."""
    return WrappedCommunicator(comm, lambda awaited: _Marked(awaited, order)) if order is not None else comm


class _Marked(Generic[T]):
    def __init__(self, awaited: Awaitable[T], order: Order) -> None:
        self._awaited, self._order = awaited, order

    def __await__(self) -> Generator[Any, Any, T]:
        result = yield from self._awaited.__await__()
        yield from self._order.mark("r").__await__()
        return result
