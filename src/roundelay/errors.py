"""All errors, as one tree.

::

    RoundelayError
    ├── SettingsError        a setting, a name or an argument is wrong
    ├── DataError            a corpus, an audio file, features or alignments are wrong
    ├── MissingExtra         an optional package is not installed
    ├── CommunicationError   learners and their messages
    │   ├── LearnerLost      another learner is lost; only the training loop handles it
    │   ├── Mismatch         learners made different collective calls, or differ in what they run
    │   └── Deadlock         every learner waits, and no event is left that could end it
    ├── NumericalError       a loss, a gradient or a weight that is not finite
    └── CheckpointError      a run or a checkpoint cannot be read or written

A message says in one line where the error is, what is wrong and what to do.  The command line prints this line and
exits with 2.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class RoundelayError(Exception):
    """The root of all our errors."""


class SettingsError(RoundelayError):
    """A setting, a name or an argument is wrong."""


class DataError(RoundelayError):
    """A corpus, an audio file, features or alignments are wrong."""


class MissingExtra(RoundelayError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed: install Roundelay with its extra {extra}, in a clone by "
            f"pip install '.[{extra}]'"
        )


class CommunicationError(RoundelayError):
    """Something is wrong between learners."""


class LearnerLost(CommunicationError):
    """Another learner is lost; raised if an operation is called or awaited.  No strategy catches it."""


class Mismatch(CommunicationError):
    """Learners made different collective calls, or differ in what they run."""


class Deadlock(CommunicationError):
    """Every learner waits, and no event is left that could end it."""


class NumericalError(RoundelayError):
    """A loss, a gradient or a weight that is not finite."""


class CheckpointError(RoundelayError):
    """A run or a checkpoint cannot be read or written."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return an unknown ``name`` with the nearest known one: ``'bumf'; did you mean 'bmuf'?``."""
    known = sorted(known)
    same = [each for each in known if each.casefold() == name.casefold()]  # as AdamW for Adamw
    near = same or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{name!r}; did you mean {near[0]!r}?" if near else f"{name!r}; use one of {', '.join(known)}"


def import_extra(module: str, extra: str) -> Any:
    """Import an optional package, or raise `MissingExtra`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(module.replace("_", "-"), extra) from error
