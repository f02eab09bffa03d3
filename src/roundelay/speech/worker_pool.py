"""Process chunks of a corpus in several processes; results come in order for any number of processes.

The parent reads and sends chunks as they are needed, so only a few chunks are in memory twice.  Processes are spawned,
not forked, so they inherit neither open files nor threads.  Ctrl-C is for the parent, which ends them: a process that
is still starting would show a traceback.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Self, TypeVar

import torch

from roundelay.errors import SettingsError

Shared = TypeVar("Shared")
Chunk = TypeVar("Chunk")
Result = TypeVar("Result")


class WorkerPool:
    """Run functions on chunks in ``jobs`` processes, in this process if ``jobs`` is 1; use in a ``with`` block."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise SettingsError(f"jobs must be at least 1, not {jobs}")
        self.jobs = jobs
        self._threads = 1
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        if self.jobs > 1:
            self._pool = ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn"), initializer=_prepare_process)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        torch.set_num_threads(self._threads)
        if self._pool:
            if kind is not None:  # nobody waits for what they are doing
                for process in list((self._pool._processes or {}).values()):
                    process.terminate()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def map(
        self, function: Callable[[Shared, Chunk], Result], shared: Shared, chunks: Iterable[Chunk]
    ) -> Iterator[Result]:
        """Yield ``function(shared, chunk)`` for each chunk, in order; few chunks are processed at a time."""
        if not self._pool:
            yield from (function(shared, chunk) for chunk in chunks)
            return
        waiting: deque[Future[Any]] = deque()
        for chunk in chunks:
            with _without_interrupts():
                waiting.append(self._pool.submit(function, shared, chunk))
            if len(waiting) > 2 * self.jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that do not notice Ctrl-C while they import; here it is noticed a moment later.

    The signal is blocked in this thread only; another thread may take it, so its handler has to wait, too.
    """
    came: list[Any] = []
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda *about: came.append(about)) if main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if main:
            signal.signal(signal.SIGINT, handler)
    if came and callable(handler):
        handler(*came[0])


def _prepare_process() -> None:
    """Leave Ctrl-C to the parent, and end with it, also if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def in_chunks(items: Iterable[Chunk], size: Callable[[Chunk], int], least: int) -> Iterator[list[Chunk]]:
    """Collect items into lists of at least ``least`` in total size; the last may be smaller."""
    chunk: list[Chunk] = []
    total = 0
    for item in items:
        chunk.append(item)
        total += size(item)
        if total >= least:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
