"""The lock that lets one thread at a time run strategy code, on runtimes where awaiting blocks.

A learner's coroutine runs to its end in one thread; a second thread serves requests.  The two share one lock: strategy
code switches threads only where it awaits or computes, as in the simulator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["StrategyLock"]


class StrategyLock:
    """Held by the thread that runs strategy code; released while that thread waits or computes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Acquire the lock until further notice."""
        self._lock.acquire()

    @contextmanager
    def acquired(self) -> Iterator[None]:
        """Hold the lock inside."""
        with self._lock:
            yield

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lock inside; only the thread that holds it may call this."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
