"""How tests call the command line."""

from __future__ import annotations

import sys

ROUNDELAY = [sys.executable, "-m", "roundelay"]
