"""Features of a corpus are made as those of the run were."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import decodable_run
from decodable_run import FIXED
from roundelay.errors import DataError
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.decoding_data import open_split
from roundelay.speech.decoding.split_decoding import decode_run
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.preparation.pipeline import IvectorSettings, prepare
from roundelay.speech.preparation.prepared_data import PreparedData, open_prepared


@pytest.fixture(scope="module")
def place() -> Path:
    return decodable_run.place()


@pytest.fixture
def data(place: Path) -> PreparedData:
    return open_prepared(place / "data")


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil, with its data as far away as they were."""
    return decodable_run.copy_run(tmp_path)


def test_a_corpus_folder_gives_the_features_of_the_preparation(place: Path, run: Path, data: PreparedData) -> None:
    bundle = Bundle.open(run)
    with open_split(bundle, place / "corpus", "test") as material:
        for name in material.utterances:
            np.testing.assert_allclose(material.inputs[name], data.inputs("test")[name], atol=1e-5)


@pytest.mark.slow
def test_adapted_features_and_vectors_are_made_as_the_preparation_made_them(tmp_path: Path) -> None:
    adapted = replace(decodable_run.SETTINGS.hmm, adapt=True)
    data = decodable_run.make_data(tmp_path, hmm=adapted, ivectors=IvectorSettings(4, num_gaussians=4))
    run = decodable_run.make_run(data, tmp_path / "run", kinds=["plain", "adapted"], ivectors=True)
    shutil.move(data.folder, tmp_path / "away")
    data = open_prepared(tmp_path / "away")
    with open_split(Bundle.open(run), tmp_path / "corpus", "test") as material:
        for name in material.utterances:
            expected = data.inputs("test", ["plain", "adapted"], ivectors=True)[name]
            np.testing.assert_allclose(material.inputs[name], expected, atol=2e-3)
    assert decode_run(run, tmp_path / "corpus", "test", language="flat", settings=FIXED).report["wer"] == 0


def test_data_with_other_features_are_refused(place: Path, run: Path, tmp_path: Path) -> None:
    other = replace(decodable_run.SETTINGS, features=FeatureSettings(num_bins=20), normalise="utterance")
    prepare(place / "corpus", tmp_path / "other", other)
    with pytest.raises(DataError, match="num_bins 20 instead of 23, normalise utterance instead of speaker; give the"):
        decode_run(run, tmp_path / "other", "test", language="flat", settings=FIXED)
