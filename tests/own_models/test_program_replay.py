"""A run of a program is replayed by the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import own_model
from roundelay.own_models.program_replay import replay

PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(own_model.__file__).parent)!r})
import roundelay
from own_model import LOADER, LOSS, make_model
roundelay.simulate(make_model, LOADER, LOSS, "adpsgd", learners=4, out="run")
"""


@pytest.mark.slow
def test_the_same_bits_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, check=True, timeout=110)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert replay(tmp_path / "run").equal
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
