"""``roundelay demo``: a miniature of it, and that the real one is laid out as it should be."""

from __future__ import annotations

import json
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from command_line import ROUNDELAY
from roundelay.strategies import STRATEGIES
from roundelay.study.definition import Study
from roundelay.study.matrix import expand

MINIATURE = """
title = "miniature"
strategies = ["averaging"]
learners = [2]
seeds = [1]
target = { value = 0.99 }
decode = { split = "dev" }

[experiment]
task = { name = "acoustic", model = { name = "dnn", preset = "tiny" } }
batch = { size = 32 }
optimizer = { name = "SGD", lr = 0.1 }
budget = { minibatches = 60, evaluate_every = 30 }
"""
PAPERS = {
    "synchronous", "averaging", "bmuf", "asgd", "easgd", "adpsgd", "adpsgd-random", "delay-by-one", "hierarchical",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_miniature_of_the_whole_story(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="espeakng-loader is not installed")
    pytest.importorskip("kaldi_decoder", reason="kaldi-decoder is not installed")
    study, out = tmp_path / "miniature.toml", tmp_path / "demo"
    study.write_text(MINIATURE)
    words = ["demo", "--out", str(out), "--hours", "0.04", "--jobs", "2", "--study", str(study), "--json"]
    done = subprocess.run([*ROUNDELAY, *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["faults"] == []
    assert next(iter(told["wer_by_noise"])) == "clean"
    assert all(0 <= rate <= 300 for rate in told["wer_by_noise"].values())
    assert told["answer"]["headline"].startswith("2 learners in the simulator: averaging reaches error 99.0 %")
    assert all(0 <= row["wer"]["median"] <= 300 for row in told["rows"])
    page = (out / "study" / "report.html").read_text()
    assert "averaging" in page
    for shown in ("$ roundelay corpus synth", "$ roundelay prepare", "$ roundelay compare"):
        assert shown in done.stderr


def test_the_story_has_all_its_parts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundelay.study.matrix._Maker._measure", lambda *_, **__: (5120, 327_680))  # without data
    with resources.as_file(resources.files("roundelay") / "demo.toml") as path:
        cells = expand(Study.read(path)).cells
    assert set(STRATEGIES) >= PAPERS
    simulated = [cell for cell in cells if cell.cluster == "straggler" and cell.learners == 16]
    assert {cell.strategy for cell in simulated} == PAPERS
    assert all(cell.settings["cluster"]["stragglers"] for cell in simulated)
    assert {cell.strategy for cell in cells if cell.cluster == "even"} == {"synchronous", "adpsgd-random"}
    assert not any(cell.fitted.outside for cell in cells)
    real = [(cell.strategy, cell.learners) for cell in cells if cell.on == "processes"]
    assert sorted(real) == [("adpsgd", 2), ("bmuf", 2), ("synchronous", 1), ("synchronous", 2)]


def test_the_papers_study_is_within_its_regime(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundelay.study.matrix._Maker._measure", lambda _, table, **__: (320 * table["learners"], 1))
    matrix = expand(Study.read(root / "experiments" / "studies" / "papers.toml"))
    assert (len(matrix.cells), len(matrix.trials)) == (81, 135)
    assert {cell.strategy for cell in matrix.cells} == PAPERS
    assert not any(cell.fitted.outside for cell in matrix.cells)
