"""Every command of the tutorial, in its order, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from command_line import call

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:Write `(?P<file>[\w.]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tutorial(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra 'synthetic' is not installed")
    pytest.importorskip("kaldi_decoder", reason="the extra 'speech' is not installed")
    ran = 0
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["kind"] == "toml":
            (tmp_path / block["file"]).write_text(block["text"])
            continue
        assert block["kind"] == "sh"
        for line in block["text"].splitlines():
            program, *words = shlex.split(line)
            assert program == "roundelay"
            done = call(*words, cwd=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            ran += 1
    assert ran > 10
    assert (tmp_path / "report" / "report.html").is_file()
