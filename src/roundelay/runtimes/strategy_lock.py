"""How strategy code runs in one thread at a time on real processes, and how its coroutines run to their end.

Nothing here suspends: awaiting blocks, and a learner's coroutine runs to its end in one go.  A second thread serves
requests.  The two hand each other a baton, so that strategy code changes hands only where it awaits or computes, as it
does in the simulator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

__all__ = ["Blocking", "StrategyLock", "run_blocking"]

T = TypeVar("T")


class StrategyLock:
    """Held by the thread that runs strategy code; put down while it waits or computes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def acquired(self) -> Iterator[None]:
        """Take it for a while."""
        with self._lock:
            yield

    def acquire(self) -> None:
        """Take it until further notice."""
        self._lock.acquire()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Put it down for a while; only the thread that holds it may."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()


class Blocking(Generic[T]):
    """An awaitable whose await is one blocking call, made at most once."""

    def __init__(self, wait: Callable[[], T]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[None, None, T]:
        return self._wait()
        yield  # type: ignore[unreachable]  # it makes this a generator, as __await__ must be


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose awaits all block, to its end."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a strategy awaited something that is not a communicator's")
