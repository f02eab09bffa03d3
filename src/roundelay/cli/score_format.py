"""Scores as the command line says them, everywhere alike."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["figures"]


def figures(scores: Mapping[str, float]) -> list[str]:
    """Say each score; errors are shares, and said in percent."""
    return [
        f"{name} {100 * value:.2f} %" if name == "error" else f"{name} {value:.4f}" for name, value in scores.items()
    ]
