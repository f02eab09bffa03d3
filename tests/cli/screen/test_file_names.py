"""Names are completed without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from roundelay.cli import COMMANDS

CODE = """
import sys
from click.shell_completion import BashComplete
from roundelay.cli import roundelay
made = BashComplete(roundelay, {}, "roundelay", "_ROUNDELAY_COMPLETE")
print(" ".join(item.value for item in made.get_completions(sys.argv[1:-1], sys.argv[-1])))
sys.exit('torch' in sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], " ".join(sorted(COMMANDS))),
        (["tra"], "train transcribe"),
        (["train", "an4-d"], "an4-dnn"),
        (["train", "tiny", "--dry"], "--dry-run"),
        (["compare", "pap"], "papers"),
        (["plan", "v100"], "v100-ethernet"),
    ],
)
def test_completion(words: list[str], expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr
