"""Tasks: what can be trained."""

from __future__ import annotations

from roundelay.task import Task
from roundelay.tasks.acoustic import Acoustic
from roundelay.tasks.tiny import Tiny

__all__ = ["TASKS"]

TASKS: dict[str, type[Task]] = {"acoustic": Acoustic, "tiny": Tiny}
"""Task classes by the name that an experiment gives."""
