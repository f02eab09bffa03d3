"""``roundelay export``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import decodable_run
from command_line import invoke
from roundelay.cli.export import command as export


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return decodable_run.copy_run(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_export_prints_one_object(run: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    about = json.loads(invoke(export, run, "--onnx", "--json"))
    assert Path(about["file"]).stat().st_size == about["bytes"]
