"""Train acoustic models for speech recognition on many learners at once.

Every parallel SGD strategy of the speech literature, behind one interface: written once, it runs on real processes,
under MPI, and on a simulated cluster.  `join` brings them to any PyTorch loop; `roundelay --help` to acoustic models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roundelay._version import __version__

if TYPE_CHECKING:
    from roundelay.communicator import Communicator
    from roundelay.errors import RoundelayError
    from roundelay.joining import Joined, join
    from roundelay.learner import Learner
    from roundelay.strategies.averaging import Averaging
    from roundelay.strategies.synchronous import Synchronous
    from roundelay.strategy import Asynchronous, Strategy
    from roundelay.task import Task

__all__ = [
    "Asynchronous",
    "Averaging",
    "Communicator",
    "Joined",
    "Learner",
    "RoundelayError",
    "Strategy",
    "Synchronous",
    "Task",
    "__version__",
    "join",
]

_HOMES = {
    "Asynchronous": "strategy",
    "Averaging": "strategies.averaging",
    "Communicator": "communicator",
    "Joined": "joining",
    "Learner": "learner",
    "RoundelayError": "errors",
    "Strategy": "strategy",
    "Synchronous": "strategies.synchronous",
    "Task": "task",
    "join": "joining",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'roundelay' has no attribute {name!r}")
    return getattr(importlib.import_module(f"roundelay.{_HOMES[name]}"), name)
