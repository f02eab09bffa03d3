"""The literature, one file a paper; the registry is what the command line, the tests and the docs go by."""

from __future__ import annotations

from roundelay.errors import SettingsError, suggest
from roundelay.strategies.averaging import Averaging
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy

__all__ = ["STRATEGIES", "Averaging", "Synchronous", "find"]

STRATEGIES: dict[str, type[Strategy]] = {
    "averaging": Averaging,
    "synchronous": Synchronous,
}
"""By the name that an experiment gives."""


def find(name: str) -> type[Strategy]:
    """Return the strategy of this name."""
    if name not in STRATEGIES:
        raise SettingsError(f"unknown strategy {suggest(name, STRATEGIES)}")
    return STRATEGIES[name]
