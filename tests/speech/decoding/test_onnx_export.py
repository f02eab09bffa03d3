"""The exported model computes what the run's does, at every length."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import decodable_run
from roundelay.errors import NumericalError
from roundelay.models import build_model
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.network_scorer import load_network
from roundelay.speech.decoding.onnx_export import _largest_difference, _write, export_onnx, runner

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
pytest.importorskip("onnxruntime", reason="the extra export is not installed")

TINY = [
    {"name": "lstm", "preset": "tiny"},
    {"name": "lstm", "preset": "tiny", "fold": 3, "left": 2, "right": 2},
    {"name": "cldnn", "preset": "tiny"},
    {"name": "tdnn", "preset": "tiny"},
    {"name": "conformer", "preset": "tiny"},
]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_is_exported_with_what_its_user_must_know(tmp_path: Path) -> None:
    run = decodable_run.place() / "run"
    about = export_onnx(run, tmp_path / "model.onnx")
    assert about["file"] == str(tmp_path / "model.onnx")
    assert about["difference"] < 1e-4
    model = load_network(run, Bundle.open(run))
    x = torch.randn(1, model.left + 123 + model.right, model.inputs)
    found = runner(tmp_path / "model.onnx")(x.numpy())
    np.testing.assert_allclose(found, model(x).detach().numpy(), atol=1e-4)
    said = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "model.onnx")).metadata_props}
    assert int(said["left"]) == model.left
    assert json.loads(said["features"])["num_bins"] == 23


@pytest.mark.slow
@pytest.mark.parametrize("table", TINY, ids=lambda table: "-".join(map(str, table.values())))
def test_every_model_can_be_exported(table: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    difference, _ = _write(build_model(table, 24, 6).eval(), tmp_path / "model.onnx", "here")
    assert difference < 1e-4


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other = (build_model({"name": "tdnn", "preset": "tiny"}, 24, 6).eval() for _ in range(2))
    _write(model, tmp_path / "model.onnx", "here")
    with pytest.raises(NumericalError, match="1 frames differ by"):
        _largest_difference(other, tmp_path / "model.onnx")
