"""The commands of the README, in their order, in an empty folder; those that need a corpus are tested by others."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from command_line import call

PAGE = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 10
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "roundelay"
        if "mpi" in words and importlib.util.find_spec("mpi4py") is None:
            continue
        done = call(*words, cwd=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
