"""Runtimes on which awaiting blocks: one lock for strategy code, their awaitables, and how a coroutine runs to its end.

A learner's coroutine runs to its end in one thread; a second thread serves requests.  The two share one lock: strategy
code switches threads only where it awaits or computes, as in the simulator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class StrategyLock:
    """Held by the thread that runs strategy code; released while that thread waits or computes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.turns = 0
        """How often it changed hands: as long as this does not change, nobody else can have changed anything."""

    def acquire(self) -> None:
        """Acquire the lock until further notice."""
        self._lock.acquire()

    @contextmanager
    def acquired(self) -> Iterator[None]:
        """Hold the lock inside."""
        with self._lock:
            self.turns += 1
            yield

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lock inside; only the thread that holds it may call this."""
        self.turns += 1
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()


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
        self.wait = wait

    def __await__(self) -> Generator[None, None, T]:
        yield from ()  # it never suspends, but __await__ must be a generator
        return self.wait()


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits all block, to its end."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a strategy awaited an object that is not a communicator's")
