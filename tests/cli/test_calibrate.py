"""``roundelay calibrate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundelay import config
from roundelay.cli import roundelay
from roundelay.errors import RoundelayError
from roundelay.runtimes.cluster import Cluster


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(roundelay, list(arguments))
    if isinstance(result.exception, RoundelayError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_record_here_and_simulate_many(tmp_path: Path) -> None:
    experiment = tmp_path / "tiny.toml"
    experiment.write_text('[task]\nname = "tiny"\n[budget]\nminibatches = 100\n', encoding="utf-8")
    run, out = str(tmp_path / "run"), tmp_path / "here.toml"
    invoke("train", str(experiment), "--out", run, "--learners", "2", "--json")
    said = json.loads(invoke("calibrate", run, "--out", str(out), "--json"))
    assert said["learners"] == 2
    assert said["steps"] == 100
    written = config.build(Cluster, config.read(out), "here")
    assert written.compute.seconds == pytest.approx(said["cluster"]["compute"]["seconds"])
    assert written.model_bytes == said["cluster"]["model_bytes"]
    assert "copy_bandwidth" in invoke("calibrate", run)
    planned = json.loads(
        invoke("plan", str(out), "--learners", "128", "--strategy", "bmuf", "--json", "--no-sensitivity")
    )
    assert planned["plans"][0]["learners"] == 128
