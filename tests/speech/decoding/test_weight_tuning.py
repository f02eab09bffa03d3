"""Weights of the search are chosen on held-out speech."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import decodable_run
from roundelay.errors import DataError
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.beam_search import Weights
from roundelay.speech.decoding.grammar import find_grammar
from roundelay.speech.decoding.split_decoding import DecodeSettings, decode_run
from roundelay.speech.decoding.weight_tuning import neighbours, read_tuned


@pytest.fixture(scope="module")
def place() -> Path:
    return decodable_run.place()


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil, with its data as far away as they were."""
    return decodable_run.copy_run(tmp_path)


def test_weights_are_chosen_on_dev_once(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = decode_run(run, None, "test", language="flat")
    assert first.report["tuned_on"] == "data-dev"
    assert "tuned on data-dev" in caplog.text
    grammar = find_grammar(Bundle.open(run), "flat")
    assert read_tuned(run, grammar) is not None
    caplog.clear()
    again = decode_run(run, None, "test", language="flat")
    assert "tuned on" not in caplog.text
    assert again.report["scale"] == first.report["scale"]
    (run / "model.safetensors").touch()
    assert read_tuned(run, grammar) is not None, "the same model"
    tensors = bytearray((run / "model.safetensors").read_bytes())
    tensors[-1] ^= 1
    (run / "model.safetensors").write_bytes(tensors)
    assert read_tuned(run, grammar) is None, "another model has other weights"


def test_the_walk_goes_to_fewer_errors(run: Path) -> None:
    decode_run(run, None, "test", language="flat")
    said = json.loads((run / "decode" / "tuned-flat.json").read_text())
    least = min(point["errors"] for point in said["tried"])
    chosen = [p for p in said["tried"] if {k: p[k] for k in ("scale", "penalty", "prior")} == said["weights"]]
    assert [point["errors"] for point in chosen] == [least]
    tried = [Weights(p["scale"], p["penalty"], p["prior"]) for p in said["tried"]]
    assert set(neighbours(Weights(**said["weights"]))) <= set(tried)


def test_weights_can_be_taken_from_another_run(place: Path, run: Path) -> None:
    with pytest.raises(DataError, match="no weights tuned for flat; decode with it first"):
        decode_run(run, None, "test", language="flat", settings=DecodeSettings(weights_of=run))
    decode_run(run, None, "test", language="flat")
    shutil.copytree(run, run.parent / "twin", ignore=shutil.ignore_patterns("decode"))
    found = decode_run(run.parent / "twin", None, "test", language="flat", settings=DecodeSettings(weights_of=run))
    assert found.report["tuned_on"] == "data-dev"
    assert not list((run.parent / "twin" / "decode").glob("tuned-*"))


def test_without_dev_usual_weights_are_taken_and_said(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(place / "run", tmp_path / "run", ignore=shutil.ignore_patterns("decode"))
    found = decode_run(tmp_path / "run", place / "corpus" / "test", "test", language="flat")
    assert found.report["tuned_on"] is None
    assert "no dev split to tune weights on" in caplog.text


def test_what_was_trained_on_is_not_tuned_on(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(settings.replace("[task]", '[task]\ntrain = ["train", "dev"]'))
    assert decode_run(run, None, "dev", language="flat").report["tuned_on"] is None
    assert "trained on dev, so its error rate is too optimistic" in caplog.text
    assert "so weights are not tuned on it" in caplog.text
