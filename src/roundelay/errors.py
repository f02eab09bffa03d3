"""Everything that can go wrong, as one tree.

::

    RoundelayError
    ├── SettingsError        a setting, a name or an argument is wrong
    ├── DataError            a corpus, an audio file, features or alignments are wrong
    ├── MissingExtra         an optional package is not installed
    ├── CommunicationError   learners and their messages
    │   ├── LearnerLost      another learner is gone; only the training loop handles it
    │   ├── Mismatch         learners made different collective calls, or differ in what they run
    │   └── Deadlock         everyone waits and nothing is going to happen
    ├── NumericalError       a loss, a gradient or a weight that is not finite
    └── CheckpointError      a run or a checkpoint cannot be read or written

A message says where, what was given and what would do, in one line; the command line prints just that and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RoundelayError(Exception):
    """The root of all our errors."""


class SettingsError(RoundelayError):
    """A setting, a name or an argument is wrong."""


class DataError(RoundelayError):
    """A corpus, an audio file, features or alignments are wrong."""


class MissingExtra(RoundelayError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; pip install 'roundelay[{extra}]' brings it")


class CommunicationError(RoundelayError):
    """Something is wrong between learners."""


class LearnerLost(CommunicationError):
    """Another learner is gone: raised where a verb is called or awaited.  No strategy ever catches it."""


class Mismatch(CommunicationError):
    """Learners made different collective calls, or differ in what they run."""


class Deadlock(CommunicationError):
    """Everyone waits and nothing is going to happen."""


class NumericalError(RoundelayError):
    """A loss, a gradient or a weight that is not finite."""


class CheckpointError(RoundelayError):
    """A run or a checkpoint cannot be read or written."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Say that ``name`` is unknown, and which known name is nearest: ``'bumf'; did you mean 'bmuf'?``."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{name!r}; did you mean {near[0]!r}?" if near else f"{name!r}; there are {', '.join(known)}"
