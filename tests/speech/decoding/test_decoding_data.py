"""What is to be decoded: corpora and prepared data, and what is wrong with them."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

import decodable_run
import tone_corpus
from decodable_run import FIXED
from roundelay.errors import DataError
from roundelay.speech.decoding.split_decoding import decode_run
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


@pytest.fixture
def heard(place: Path, tmp_path: Path) -> Path:
    shutil.copytree(place / "corpus" / "test", tmp_path / "heard")
    return tmp_path / "heard"


def test_audio_at_another_rate_is_named(run: Path, heard: Path) -> None:
    path = next(heard.glob("*.wav"))
    samples, rate = soundfile.read(path)
    soundfile.write(path, np.repeat(samples, 2), 2 * rate)
    assert decode_run(run, heard, "test", language="flat", settings=FIXED).wer.words == 11, "more will do"
    soundfile.write(path, samples[::2], rate // 2)
    with pytest.raises(DataError, match=r"8000 Hz, .* trained on 16000 Hz; .*--resample"):
        decode_run(run, heard, "test", language="flat", settings=FIXED)
    decode_run(run, heard, "test", language="flat", settings=replace(FIXED, resample=True))


def test_an_empty_utterance_is_named(run: Path, heard: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = heard / "test0-u0.wav"
    soundfile.write(path, np.zeros(100), tone_corpus.RATE)
    found = decode_run(run, heard, "test", language="flat", settings=FIXED)
    assert "utterance test0-u0: too short for a frame, so its words count as deleted" in caplog.text
    assert found.report["deletions"] == 2, "its words count"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"empty audio file \(0 bytes\)"):
        decode_run(run, heard, "test", language="flat", settings=FIXED)


def write_ark(folder: Path, features: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write feats.scp and the archive that it points into, as Kaldi does."""
    content, rows = b"", []
    for name, matrix in features.items():
        content += f"{name} ".encode()
        rows.append(f"{name} {folder / 'feats.ark'}:{len(content)}\n")
        content += b"\0BFM " + struct.pack("<bibi", 4, len(matrix), 4, matrix.shape[1])
        content += np.asarray(matrix, "<f4").tobytes()
    (folder / "feats.ark").write_bytes(content)
    (folder / "feats.scp").write_text("".join(rows))


def test_given_features_are_taken_or_missed(place: Path, run: Path, data: PreparedData, heard: Path) -> None:
    description = run / "acoustic" / "bundle.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps(said | {"given_features": True, "normalise": "none"}))
    with pytest.raises(DataError, match=r"trained on given features \(feats.scp\), which cannot be made from audio"):
        decode_run(run, heard, "test", language="flat", settings=FIXED)
    write_ark(heard, data.features("test"))
    found = decode_run(run, heard, "test", language="flat", settings=FIXED)
    assert found.report["wer"] == 0


def test_an_unknown_split_or_language_is_named(place: Path, run: Path) -> None:
    with pytest.raises(DataError, match="unknown split 'tset'; did you mean 'test'"):
        decode_run(run, None, "tset", language="flat", settings=FIXED)
    with pytest.raises(DataError, match="unknown split 'tset'; did you mean 'test'"):
        decode_run(run, place / "corpus", "tset", language="flat", settings=FIXED)
    with pytest.raises(DataError, match="unknown language 'trigram'"):
        decode_run(run, None, "test", language="trigram", settings=FIXED)
