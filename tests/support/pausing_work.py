"""Work for a process that ends only if it is ended."""

from __future__ import annotations

import signal
from pathlib import Path


def add_slowly(folder: str, chunk: int) -> int:
    """Leave a sign, and take far longer than any test."""
    Path(folder, f"working-{chunk}").touch()
    signal.pause()
    return chunk
