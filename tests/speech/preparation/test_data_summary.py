"""The summary, the check and the picture of prepared data."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tone_corpus
from roundelay.errors import DataError
from roundelay.speech.features.array_store import shard_name, write_store
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.preparation.data_summary import check_prepared, draw_utterance, phone_durations, summary_lines
from roundelay.speech.preparation.pipeline import open_prepared, prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("summary")
    corpus = tone_corpus.make(folder / "corpus", train=8, dev=3)
    samples, rate = soundfile.read(corpus / "dev" / "dev0-u00.wav")
    soundfile.write(corpus / "dev" / "dev0-u00.wav", (samples * 20).clip(-1, 1), rate)
    soundfile.write(corpus / "dev" / "dev1-u01.wav", np.zeros_like(samples), rate)
    prepare(corpus, folder / "data", tone_corpus.SETTINGS)
    return folder / "data"


@pytest.fixture
def data(prepared: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    subprocess.run(["cp", "-a", prepared, tmp_path / "data"], check=True)
    return tmp_path / "data"


def test_summary_counts(prepared: Path) -> None:
    report = check_prepared(prepared)
    train, dev = report["splits"]["train"], report["splits"]["dev"]
    assert (train["utterances"], train["speakers"], train["words"]) == (8, 2, 24)
    assert train["hours"] == pytest.approx(train["frames"] / 360_000, abs=1e-4)
    assert dev["clipped"] == ["dev0-u00"]
    assert dev["silent"] == ["dev1-u01"]
    assert report["senones"] >= 15
    assert "dev: dev1-u01 is silent" in report["problems"]
    assert "dev: dev0-u00 is clipped" in report["problems"]
    durations = report["phone_durations"]
    assert 60 < durations["AA"]["mean_ms"] < 250
    assert sum(phone["count"] for phone in durations.values()) > 60
    text = "\n".join(summary_lines(report))
    assert "dev: 1 silent: dev1-u01" in text
    assert re.search(r"^train +8 +0\.\d+ +2 +24 +8 +0$", text, re.MULTILINE)


def test_phone_durations_by_hand(tmp_path: Path) -> None:
    lexicon = Lexicon({"A": [("AA",)]})
    rows = np.array([[0, 0, 4], [1, 4, 6], [1, 6, 12]])
    store = write_store(tmp_path / "phones", [("u", rows)], dim=3, dtype="int32")
    assert phone_durations([store], lexicon, 0.01) == {
        "sil": {"count": 1, "mean_ms": 40.0, "std_ms": 0.0},
        "AA": {"count": 2, "mean_ms": 40.0, "std_ms": 20.0},
    }


def test_spoilt_data_are_found(data: Path) -> None:
    shard = data / "features" / "train" / shard_name(0)
    content = bytearray(shard.read_bytes())
    content[100] ^= 255
    shard.write_bytes(content)
    (data / "alignments" / "dev" / "senones" / shard_name(0)).write_bytes(b"")
    problems = check_prepared(data)["problems"]
    assert any("features/train/shard-00000.raw: damaged: its sha256" in problem for problem in problems)
    assert any("alignments/dev/senones/shard-00000.raw: 0 bytes" in problem for problem in problems)


def test_an_alignment_that_does_not_fit_is_found(data: Path) -> None:
    given = open_prepared(data)
    name = given.utterances("dev")[0].id
    length = len(given.features("dev")[name])
    write_store(data / "alignments" / "dev" / "senones", [(name, np.zeros(3))], dim=0, dtype="int32")
    tone_corpus.forget_digests(data)
    assert f"dev: {name} has an alignment that does not fit its features" in check_prepared(data)["problems"]
    write_store(data / "alignments" / "dev" / "senones", [(name, np.full(length, 999))], dim=0, dtype="int32")
    assert f"dev: {name} has senones beyond {given.num_senones}" in check_prepared(data)["problems"]


def test_a_folder_without_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no prepared data"):
        check_prepared(tmp_path)


def test_picture_shows_the_words_and_stands_alone(prepared: Path) -> None:
    given = open_prepared(prepared)
    utterance = given.utterances("train")[0]
    text = draw_utterance(given, "train", utterance.id)
    root = ET.fromstring(text)
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"{utterance.id}: {' '.join(utterance.words)}" in shown
    assert all(word in shown for word in utterance.words)
    assert "http" not in re.sub(r"xmlns='[^']*'", "", text)
    assert "<script" not in text
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(given.phones("train")[utterance.id]) + len(utterance.words)
    assert (prepared / "picture.svg").read_text().startswith("<svg")
    with pytest.raises(DataError, match="train has no utterance 'nobody'"):
        draw_utterance(given, "train", "nobody")
