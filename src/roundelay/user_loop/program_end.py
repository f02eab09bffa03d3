"""How a program ends that has not closed its learner: well, or by an error that the other learners must hear of."""

from __future__ import annotations

import atexit
import functools
import sys
import weakref
from typing import Protocol

_exits: list[object] = []
"""The statuses that `sys.exit` was called with since a learner last took a step."""
_seen: list[object] = []
"""The error that an interactive session has shown before a learner last took a step."""


class Endable(Protocol):
    """A learner that is still joined when the program ends."""

    def close(self) -> None:
        """Leave the run with the others."""

    def abandon(self, reason: str) -> None:
        """Leave at once, without the others: they are told the ``reason``."""


@functools.cache
def watch_exit() -> None:
    """Note what `sys.exit` is called with: when the program ends, Python has forgotten it."""
    original = sys.exit

    @functools.wraps(original)
    def noting(status: object = None, /) -> None:
        _exits.append(status)
        original(status)  # type: ignore[arg-type]  # anything that the caller gives

    sys.exit = noting  # type: ignore[assignment]  # it never returns either


def note_progress() -> None:
    """Note that the program goes on, whatever error was caught or shown before."""
    _exits.clear()
    _seen[:] = [getattr(sys, "last_value", None)]


def is_failure(error: BaseException | None) -> bool:
    """Return whether a program that ends by this has failed."""
    return error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))


def what_has_ended() -> str | None:
    """Return the error by which the program ends; ``None`` if it ends well."""
    error: BaseException | None = getattr(sys, "last_value", None)
    if error is not None and not any(error is each for each in _seen):
        return f"{type(error).__name__}: {error}"
    failed = [status for status in _exits if status not in (None, 0)]
    return f"exit status {failed[-1]}" if failed else None


def at_exit(learner: Endable, name: str) -> object:
    """Close the learner when the program ends, or abandon it after an error; return what `forget` takes."""
    reference = weakref.ref(learner)

    def end() -> None:
        joined, error = reference(), what_has_ended()
        if joined is not None and error is None:
            joined.close()
        elif joined is not None:
            joined.abandon(f"{name} has ended: {error}")

    atexit.register(end)
    return end


def forget(end: object) -> None:
    """Do nothing for this learner when the program ends."""
    atexit.unregister(end)  # type: ignore[arg-type]  # what `at_exit` has returned
