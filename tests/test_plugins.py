"""Strategies, tasks, models and corpora of the user's own, in a file that the package does not know."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import roundelay
import user_plugins
from command_line import ROUNDELAY
from roundelay import corpora, plugins
from roundelay.errors import SettingsError
from roundelay.experiment.settings import Experiment
from roundelay.strategies import STRATEGIES
from roundelay.training.fingerprint import fingerprint
from user_plugins import Lazy, Line

OWN = Path(user_plugins.__file__)
EXPERIMENT = """
learners = 2
task = { name = "kinds.py:Line" }
strategy = { name = "kinds.py:Lazy", period = 5 }
optimizer = { name = "SGD", lr = 0.1 }
budget = { epochs = 3 }
"""
STUDY = """
experiment = "own.toml"
strategies = ["kinds.py:Lazy", "averaging"]
learners = [2]
target = { value = 0.5, score = "loss" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an experiment, and the file that it names beside it."""
    shutil.copy(OWN, tmp_path / "kinds.py")
    (tmp_path / "own.toml").write_text(EXPERIMENT)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROUNDELAY, *words], capture_output=True, text=True, timeout=110, check=False)


def test_a_task_and_a_strategy_train_on_the_simulator_and_on_processes(folder: Path) -> None:
    for on in ("simulator", "processes"):
        done = call("train", str(folder / "own.toml"), "--out", str(folder / on), "--on", on, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["scores"]["loss"] < 0.1
    one, other = ((folder / on / "model.safetensors").read_bytes() for on in ("simulator", "processes"))
    assert one == other
    settings = (folder / "simulator" / "settings.toml").read_text()
    assert f'name = "{folder}/kinds.py:Lazy"' in settings, "the path is absolute, so that a run can be resumed"


def test_the_library_takes_objects() -> None:
    made = roundelay.simulate(Line(), Lazy(period=2), learners=3, epochs=2, evaluate_every=10)
    assert made.scores["loss"] < 0.5
    assert [each.minibatch for each in made.evaluations] == [10, 20, 30, 40]
    assert made.seconds >= made.evaluations[-1].seconds > 0
    assert isinstance(made.model, torch.nn.Linear)
    again = roundelay.simulate(Line(), Lazy(period=2), learners=3, epochs=2, evaluate_every=10)
    assert (again.scores, again.seconds) == (made.scores, made.seconds)


def test_a_class_of_a_program_goes_by_its_file() -> None:
    table = Experiment({"name": "tiny"}, strategy=Lazy(period=7)).plain()
    assert table["strategy"] == {"name": f"{OWN}:Lazy", "period": 7}
    assert type(Experiment.of(table).strategy).__name__ == "Lazy"


@pytest.mark.slow
def test_a_study_compares_it(folder: Path) -> None:
    found = roundelay.compare(folder / "study.toml", folder / "out", jobs=1)
    assert {row["strategy"] for row in found.summary["rows"]} >= {"Lazy", "averaging"}
    assert len(found.computed) == 3


def test_a_model_trains_and_decodes_only_if_its_file_is_trusted(folder: Path, toned: str) -> None:
    model = {"name": f"{folder}/kinds.py:Affine", "preset": "usual"}
    table = {"task": {"name": "acoustic", "data": toned, "model": model}, "budget": {"minibatches": 4}}
    made = roundelay.train(table, folder / "run", learners=2, on="simulator")
    assert made.folder == folder / "run"
    refused = call("decode", str(folder / "run"), "--data", toned, "--split", "dev", "--language", "flat")
    assert refused.returncode == 2
    assert "reading a run executes no file; if you trust it, use --load" in refused.stderr


def test_a_corpus() -> None:
    assert corpora.load(f"{OWN}:CORPUS").name == "own"
    with pytest.raises(SettingsError, match="user_plugins.py:NOTHING: not a Corpus"):
        corpora.load(f"{OWN}:NOTHING")


def test_what_is_wrong_is_said_in_a_line(folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    for name, message in (
        ("nowhere.py:Lazy", r"strategy.name: .*nowhere.py: no such file"),
        ("kinds.py:Missing", r"strategy.name: .*kinds.py: has no Missing"),
        ("kinds.py:Line", r"strategy.name: .*kinds.py:Line: not a subclass of Strategy"),
        ("broken.py:Lazy", r"strategy.name: .*broken.py: cannot be loaded: ZeroDivisionError"),
        ("synchronus", "strategy.name: unknown 'synchronus'; did you mean 'synchronous'"),
    ):
        with pytest.raises(SettingsError, match=message):
            roundelay.train({"task": {"name": "tiny"}}, strategy=str(folder / name) if "." in name else name)


def test_the_code_is_part_of_the_fingerprint(folder: Path) -> None:
    settings = Experiment.read(folder / "own.toml").plain()
    before = fingerprint(settings)
    (folder / "kinds.py").write_text((folder / "kinds.py").read_text() + "\n# changed\n")
    changed = {name for name, value in fingerprint(settings).items() if before[name] != value}
    assert changed == {"code of kinds.py"}


def test_installed_packages_add_to_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered:
        def load(self) -> type[Lazy]:
            return Lazy

    monkeypatch.setattr(plugins, "installed", lambda group: {"lazy": Offered()} if "strategies" in group else {})
    assert "lazy" in STRATEGIES.names()
    assert STRATEGIES.find("lazy", "strategy") is Lazy
    assert Experiment.of({"task": {"name": "tiny"}, "strategy": {"name": "lazy"}}).plain()["strategy"]["name"] == "lazy"
    STRATEGIES._found.clear()
