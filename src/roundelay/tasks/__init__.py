"""Tasks: what can be trained."""

from __future__ import annotations

from roundelay.plugins import Registry
from roundelay.task import Task
from roundelay.tasks.acoustic import Acoustic
from roundelay.tasks.tiny import Tiny

TASKS = Registry(Task, {"acoustic": Acoustic, "tiny": Tiny}, "roundelay.tasks")
"""By the name that an experiment gives."""
Task.registry = TASKS
