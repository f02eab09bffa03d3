"""What a study's folder says: medians and ranges, time to target, speed-up, ranking, and the short answer."""

from __future__ import annotations

from pathlib import Path

from roundelay.study.schema import Summary

__all__ = ["summarise"]


def summarise(folder: Path) -> Summary:
    """Read ``study.json`` and every ``runs/*/cell.json`` with its record; the result is plain JSON (`schema`)."""
    raise NotImplementedError
