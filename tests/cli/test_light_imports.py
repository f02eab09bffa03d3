"""Commands that train nothing begin at once: they do not import torch, which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from roundelay.cli import COMMANDS

SAID = "; import sys; sys.exit('torch' in sys.modules)"


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"theory"}))
def test_help(name: str) -> None:
    code = f"from roundelay.cli.{name} import command; command.main(['--help'], standalone_mode=False){SAID}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0


def test_watching_and_reporting(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('learners = 1\n[strategy]\nname = "bmuf"\n')
    step = '{"event":"step","member":"learner 0","clock":"wall","time":1.0,"minibatch":0,"frames":8,"loss":2.0}\n'
    (tmp_path / "record.jsonl").write_text(step)
    for name, words in (("watch", ["--once"]), ("watch", ["--json"]), ("report", ["--json"])):
        given = [str(tmp_path), *words]
        code = f"from roundelay.cli.{name} import command; command.main({given!r}, standalone_mode=False){SAID}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
