"""Compare files with their digests in a thread, while their first readers already use them.

Reading speech for training goes on at once; the thread has the lowest priority.  What it finds is told to whoever asked
for the check, who raises it at the next read and before any result is kept.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from roundelay.errors import DataError
from roundelay.files import file_digest

AGAIN = "run roundelay prepare again with the same options, which makes it again"
_LOWEST_PRIORITY = 19
_Task = tuple[Path, str, str, "Future[str]"]


class _Checker:
    """One thread for all files of a process; it is started by the first of them."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._lock, self._started = threading.Lock(), False

    def submit(self, path: Path, sha256: str, listed_in: str) -> Future[str]:
        result: Future[str] = Future()
        self._waiting.put((path, sha256, listed_in, result))
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="digests", daemon=True).start()
        return result

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # where threads have no priority of their own, we do without
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while True:
            path, sha256, listed_in, result = self._waiting.get()
            result.set_result(difference(path, sha256, listed_in))
            del result


_checker = _Checker()


def _begin_anew() -> None:
    """Forget the parent's thread, which a forked process has not."""
    global _checker
    _checker = _Checker()


os.register_at_fork(after_in_child=_begin_anew)


def submit(path: Path, sha256: str, listed_in: str) -> Future[str]:
    """Begin to compare a file with its digest; the result is what is wrong with it, empty if nothing is."""
    return _checker.submit(path, sha256, listed_in)


class FileChecks:
    """The checks of one reader: the first file that was found to be damaged, at the reader's leisure."""

    def __init__(self) -> None:
        self._running: deque[Future[str]] = deque()  # they end in this order
        self._damaged, self._lock = "", threading.Lock()

    def begin(self, path: Path, sha256: str, listed_in: str) -> None:
        """Begin to compare a file with its digest."""
        self._running.append(submit(path, sha256, listed_in))

    def look(self) -> None:
        """Raise if a file is known to be damaged; do not wait."""
        if self._running:
            self._end(wait=False)
        if self._damaged:
            raise DataError(self._damaged)

    def finish(self) -> None:
        """Wait for all checks; raise if a file is damaged."""
        self._end(wait=True)
        self.look()

    def _end(self, *, wait: bool) -> None:
        with self._lock:
            while self._running and (wait or self._running[0].done()):
                self._damaged = self._running.popleft().result() or self._damaged


def difference(path: Path, sha256: str, listed_in: str) -> str:
    """Return what is wrong with a file whose digest is listed in another, empty if nothing is."""
    try:
        found = file_digest(path)
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}; {AGAIN}"
    return "" if found == sha256 else f"{path}: damaged: its sha256 is not that in {listed_in}; {AGAIN}"


def check(path: Path, sha256: str, listed_in: str) -> None:
    """Raise if a file has not its digest."""
    if wrong := difference(path, sha256, listed_in):
        raise DataError(wrong)
