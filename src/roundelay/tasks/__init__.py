"""What can be trained."""

from __future__ import annotations

from roundelay.task import Task
from roundelay.tasks.tiny import Tiny

__all__ = ["TASKS"]

TASKS: dict[str, type[Task]] = {"tiny": Tiny}
"""By the name that an experiment gives."""
