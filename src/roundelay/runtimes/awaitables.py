"""Awaitables of runtimes on which awaiting blocks, and how a coroutine that awaits them runs to its end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Blocking", "Settled", "run_blocking"]

T = TypeVar("T")


class Settled(Generic[T]):
    """A result that is known already; awaiting it does not wait."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()  # it never waits, but __await__ must be a generator
        return self.value


class Blocking(Generic[T]):
    """An awaitable that makes one blocking call; await it at most once."""

    def __init__(self, wait: Callable[[], T]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[None, None, T]:
        yield from ()  # it never suspends, but __await__ must be a generator
        return self._wait()


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits all block, to its end."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a strategy awaited an object that is not a communicator's")
