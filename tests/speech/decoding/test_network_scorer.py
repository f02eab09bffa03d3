"""Networks of runs are loaded if they fit their settings and graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import decodable_run
from decodable_run import FIXED
from roundelay.errors import DataError
from roundelay.models import build_model
from roundelay.runs.run_folder import RunFolder
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.network_scorer import load_network
from roundelay.speech.decoding.split_decoding import decode_run


@pytest.fixture(scope="module")
def place() -> Path:
    return decodable_run.place()


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil, with its data as far away as they were."""
    return decodable_run.copy_run(tmp_path)


def test_a_model_of_other_features_is_refused(place: Path, run: Path) -> None:
    description = run / "acoustic" / "bundle.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps(said | {"inputs": 30}))
    with pytest.raises(DataError, match=r"hidden.0.weight is \[32, 115\], but 30 features per frame"):
        load_network(run, Bundle.open(run))


def test_a_graph_that_does_not_fit_is_refused(place: Path, run: Path) -> None:
    description = run / "acoustic" / "bundle.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps(said | {"outputs": 17}))
    with pytest.raises(DataError, match="the model has 18 outputs and the graphs in .* are for 17"):
        decode_run(run, None, "test", language="flat", settings=FIXED)


@pytest.mark.parametrize("model", [{"name": "lstm", "preset": "tiny", "fold": 3}, {"name": "tdnn", "preset": "tiny"}])
def test_outputs_are_counted_for_each_frame(run: Path, model: dict[str, Any]) -> None:
    (run / "settings.toml").write_text(tomli_w.dumps({"task": {"name": "acoustic", "model": model}}))
    RunFolder(run).save_model(build_model(model, Bundle.open(run).inputs, 20), {})
    with pytest.raises(DataError, match="the model has 20 outputs and the graphs in .* are for 18"):
        load_network(run, Bundle.open(run))


def test_another_model_than_the_settings_name_is_refused(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(settings.replace("dnn", "tdnn"))
    with pytest.raises(DataError, match="its tensors are not those of task.model"):
        decode_run(run, None, "test", language="flat", settings=FIXED)
    (run / "model.safetensors").unlink()
    with pytest.raises(DataError, match="model.safetensors: no such file; the run has no trained model yet"):
        decode_run(run, None, "test", language="flat")
    assert not caplog.text, "before anything else is tried"


def test_a_damaged_model_is_named_and_a_run_without_a_digest_is_read(tmp_path: Path) -> None:
    run = decodable_run.copy_run(tmp_path)
    path = run / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DataError, match=r"model\.safetensors: damaged: .* 'roundelay train .*settings\.toml --out NEW'"
    ):
        load_network(run, Bundle.open(run))
    (run / "model.json").unlink()  # as an older version left it
    load_network(run, Bundle.open(run))
