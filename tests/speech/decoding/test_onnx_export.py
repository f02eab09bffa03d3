"""The exported model computes what the run's does, at every length."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import decodable_run
import tone_corpus
from roundelay.errors import NumericalError
from roundelay.models import build_model
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.network_scorer import Scorer, load_network
from roundelay.speech.decoding.onnx_export import (
    StandaloneNetwork,
    _largest_difference,
    _write,
    export_onnx,
    runner,
)
from roundelay.speech.decoding.transcription import transcribe
from roundelay.speech.features.normalisation import Moments

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
pytest.importorskip("onnxruntime", reason="the extra export is not installed")

TINY = [
    {"name": "lstm", "preset": "tiny"},
    {"name": "lstm", "preset": "tiny", "fold": 3, "left": 2, "right": 2},
    {"name": "cldnn", "preset": "tiny"},
    {"name": "tdnn", "preset": "tiny"},
    {"name": "conformer", "preset": "tiny"},
]


def network(table: dict[str, Any]) -> StandaloneNetwork:
    return StandaloneNetwork(build_model(table, 24, 6), normalised=True).eval()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_is_exported_with_what_its_user_must_know(tmp_path: Path) -> None:
    run = decodable_run.place() / "run"
    about = export_onnx(run, tmp_path / "model.onnx")
    assert about["file"] == str(tmp_path / "model.onnx")
    assert about["difference"] < 1e-4
    bundle = Bundle.open(run)
    model = load_network(run, bundle)
    x = 3 * np.random.default_rng(0).standard_normal((123, model.inputs)).astype(np.float32) + 5
    found = runner(tmp_path / "model.onnx")(x[None])[0]
    np.testing.assert_allclose(found, Scorer(model)(Moments.from_frames(x).apply(x)), atol=1e-4)
    written = onnx.load(str(tmp_path / "model.onnx"))
    said = {entry.key: entry.value for entry in written.metadata_props}
    assert int(said["left"]) == model.left
    assert json.loads(said["features"])["num_bins"] == 23
    assert json.loads(said["priors"]) == pytest.approx(bundle.priors.tolist(), rel=1e-4)
    assert said["recipe"] == (run / "settings.toml").read_text()
    axes = [axis.dim_param for value in (*written.graph.input, *written.graph.output) for axis in _axes(value)]
    assert [name for name in axes if name] == ["frames", "scores"]


def _axes(value: Any) -> Any:
    return value.type.tensor_type.shape.dim


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example_finds_the_same_words_without_torch(tmp_path: Path) -> None:
    pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank is not installed")
    run = tmp_path / "run"
    shutil.copytree(decodable_run.place() / "run", run)
    assert export_onnx(run)["standalone"]
    wav, said = tmp_path / "said.wav", ["MA", "SEE", "AS", "ME"]
    soundfile.write(wav, tone_corpus.say(said, np.random.default_rng(3)), tone_corpus.RATE, subtype="PCM_16")
    (wanted,) = transcribe(run, [wav], language="flat", settings=decodable_run.FIXED)
    script = Path(__file__).parents[3] / "examples" / "onnx_decode.py"
    code = f"import sys, runpy; runpy.run_path({str(script)!r}, run_name='__main__'); sys.exit('torch' in sys.modules)"
    words = [sys.executable, "-c", code, str(run), str(wav), "flat"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == wanted.text.split() == said


@pytest.mark.slow
@pytest.mark.parametrize("table", TINY, ids=lambda table: "-".join(map(str, table.values())))
def test_every_model_can_be_exported(table: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(0)
    difference, _ = _write(network(table), tmp_path / "model.onnx", "here")
    assert difference < 1e-4


def test_a_file_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other = (network({"name": "tdnn", "preset": "tiny"}) for _ in range(2))
    _write(model, tmp_path / "model.onnx", "here")
    with pytest.raises(NumericalError, match="frames differ by"):
        _largest_difference(other, tmp_path / "model.onnx")
