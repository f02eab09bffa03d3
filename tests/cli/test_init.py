"""``roundelay init``: files to start from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import call
from roundelay.experiment.settings import Experiment
from roundelay.included_files import included_names, read_extended
from roundelay.study.definition import Study


def test_what_there_is() -> None:
    listed = json.loads(call("init", "--list", "--json").stdout)
    assert set(listed["experiment"]) == set(included_names("experiment"))
    assert all(purpose for files in listed.values() for purpose in files.values())
    assert "an4-conformer" in call("init", "--list").stdout


def test_a_copied_experiment_is_one(tmp_path: Path) -> None:
    done = call("init", "experiment", "--out", "mine.toml", cwd=tmp_path)
    assert done.stdout == "mine.toml: written; next: roundelay train mine.toml --out runs/first\n"
    assert Experiment.read(tmp_path / "mine.toml").task["name"] == "tiny"
    again = call("init", "experiment", "--out", "mine.toml", cwd=tmp_path)
    assert again.stderr == "roundelay: mine.toml already exists; give another --out\n"


@pytest.mark.parametrize("name", included_names("study"))
def test_a_copied_study_stands_alone(name: str, tmp_path: Path) -> None:
    assert call("init", "study", name, "--out", str(tmp_path / "mine.toml")).returncode == 0
    study = Study.read(tmp_path / "mine.toml")
    assert isinstance(study.experiment, dict)


def test_a_cluster_and_a_loop(tmp_path: Path) -> None:
    assert call("init", "cluster", cwd=tmp_path).returncode == 0
    assert read_extended(tmp_path / "two-racks.toml", "cluster")
    assert "torchrun" in call("init", "loop", cwd=tmp_path).stdout
    compile((tmp_path / "loop.py").read_text(), "loop.py", "exec")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    assert "experiment, study, cluster, loop" in call("init").stderr
    assert "did you mean 'papers'" in call("init", "study", "paper").stderr
