"""The virtual environment of frameworks that Roundelay works with; ``make test-frameworks`` makes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-frameworks"


def framework_python() -> str:
    """Return the interpreter that has the frameworks, or skip the test."""
    if not (VENV / "ready").exists():
        pytest.skip("the frameworks are not installed here; make test-frameworks installs and tests them")
    return str(VENV / "bin" / "python")


def run_there(*words: str, folder: Path, learners: int = 0, environment: dict[str, str] | None = None) -> str:
    """Run a program with the frameworks, under torchrun if it has learners; return what it prints."""
    python = framework_python()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(learners)] if learners else []
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [python, *torchrun, *words], capture_output=True, text=True, timeout=280, cwd=folder,
        env=os.environ | quiet | (environment or {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
