"""The folder of a run: created once, described, discarded if nothing came of it, and the model in it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from roundelay import config
from roundelay._version import __version__
from roundelay.errors import SettingsError
from roundelay.runs.run_folder import RunFolder, versions


@dataclass(frozen=True)
class Settings:
    learners: int = 2


def test_a_new_folder_has_settings_and_versions(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.create(Settings(3), {"on": "simulator"})
    assert config.read(folder.settings) == {"learners": 3}
    about = json.loads((folder.path / "run.json").read_text())
    assert about["on"] == "simulator"
    assert about["roundelay"] == __version__
    assert about["torch"] == str(torch.__version__)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one.txt").write_text("dear")
    with pytest.raises(SettingsError, match=r"letters already exists: give a new --out"):
        RunFolder(tmp_path / "letters").create(Settings(), {})
    run = RunFolder(tmp_path / "run")
    run.create(Settings(), {})
    with pytest.raises(SettingsError, match=r"run already exists: run 'roundelay resume .*run' or give a new --out"):
        run.create(Settings(), {})


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    RunFolder(tmp_path).create(Settings(), {})
    assert RunFolder(tmp_path).settings.exists()


def test_a_run_that_has_not_begun_is_discarded_and_another_is_kept(tmp_path: Path) -> None:
    for name in ("fresh", "trained"):
        RunFolder(tmp_path / name).create(Settings(), {})
        (tmp_path / name / "record.jsonl").touch()
    (tmp_path / "trained" / "model.safetensors").touch()
    for name in ("fresh", "trained"):
        RunFolder(tmp_path / name).discard()
    assert [path.name for path in tmp_path.iterdir()] == ["trained"]


def test_revised_settings_take_the_place_of_the_first(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(Settings(2), {"learners": 2})
    folder.revise(Settings(4), {"learners": 4})
    assert config.read(folder.settings) == {"learners": 4}
    assert json.loads((folder.path / "run.json").read_text()) == {"learners": 4}


def test_a_model_is_saved_with_its_description(tmp_path: Path) -> None:
    folder, module = RunFolder(tmp_path), nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    folder.save_model(module, {"minibatch": 10})
    tensors = load_file(folder.model)
    assert tensors.keys() == module.state_dict().keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in module.state_dict().items())
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["minibatch"] == 10
    assert about["tensors"]["0.weight"] == ["float32", 2, 3]
    assert about["parameters"] == 12
    assert about["sha256"] == hashlib.sha256(folder.model.read_bytes()).hexdigest()


def test_a_checkout_tells_its_commit(root: Path) -> None:
    said = versions()
    assert ("commit" in said) == (root / ".git").exists()
    assert len(said.get("commit", "0" * 40)) == 40
