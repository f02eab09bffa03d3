"""What learners print: the first one writes to the terminal itself, the lines of the others get their number."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

CHUNK = 1 << 16


class LineReader:
    """Reads one stream of a learner and writes its whole lines with a prefix."""

    def __init__(self, prefix: str, write: Callable[[str], object]) -> None:
        self.file, self.theirs = os.pipe()
        os.set_blocking(self.file, False)
        self._prefix, self._write, self._rest, self.closed = prefix, write, b"", False

    def read(self) -> bool:
        """Write the lines that have come; return whether more may come."""
        try:
            data = os.read(self.file, CHUNK)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2]  # a progress bar draws over itself
            self._write(f"{self._prefix}{shown.decode(errors='replace')}\n")
        return bool(data)

    def close(self) -> None:
        """Write what is left, also if a process still has the other end open."""
        with contextlib.suppress(OSError):
            before = -1
            while before != len(self._rest) and self.read():
                before = len(self._rest)
        if self._rest:
            self._write(f"{self._prefix}{self._rest.decode(errors='replace')}\n")
            self._rest = b""
        os.close(self.file)
        self.closed = True


class LearnerOutput:
    """Where one learner's output goes."""

    def __init__(self, learner: int, logs: Path | None) -> None:
        self.readers: list[LineReader] = []
        self._opened = [os.open(os.devnull, os.O_RDONLY)]
        self.streams = (self._opened[0], 1, 2)
        """The files of its standard streams; the first learner has the launcher's own."""
        if learner and logs is not None:
            file = os.open(logs / f"learner-{learner}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            self._opened.append(file)
            self.streams = (self._opened[0], file, file)
        elif learner:
            prefix = f"[{learner}] "
            self.readers = [
                LineReader(prefix, _writer(lambda: sys.stdout)),
                LineReader(prefix, _writer(lambda: sys.stderr)),
            ]
            out, err = (reader.theirs for reader in self.readers)
            self._opened += [out, err]
            self.streams = (self._opened[0], out, err)

    def started(self) -> None:
        """Close what the learner's process has now."""
        for file in self._opened:
            os.close(file)


def _writer(stream: Callable[[], TextIO]) -> Callable[[str], None]:
    def write(text: str) -> None:
        stream().write(text)
        stream().flush()

    return write
