"""From a trained run to words: near or far from its data, in one process or two, with features as its own were."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import decodable_run
from decodable_run import FIXED
from roundelay.errors import DataError
from roundelay.speech.decoding.acoustic_bundle import Bundle
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


def test_it_recognises_what_is_said(run: Path) -> None:
    found = decode_run(run, None, "test", language="flat", settings=FIXED)
    assert found.report["wer"] == 0
    assert found.folder == run / "decode" / "data-test-flat"
    written = json.loads((found.folder / "wer.json").read_text())
    assert written == found.report
    assert {"wer", "interval", "words", "errors", "insertions", "deletions", "substitutions", "split", "language",
            "scale", "penalty", "prior", "beam", "real_time_factor"} <= written.keys()  # fmt: skip
    rows = [json.loads(line) for line in (found.folder / "utterances.jsonl").read_text().splitlines()]
    assert rows[0].keys() == {"utterance", "reference", "hypothesis", "errors", "words"}
    assert all(row["reference"] == row["hypothesis"] for row in rows)
    texts = dict(line.split(maxsplit=1) for line in (found.folder / "hyp.txt").read_text().splitlines())
    assert texts == {row["utterance"]: row["hypothesis"] for row in rows}


def test_times_are_those_of_the_alignment(run: Path, data: PreparedData) -> None:
    found = decode_run(run, None, "test", language="bigram", settings=FIXED)
    lines = [line.split() for line in (found.folder / "hyp.ctm").read_text().splitlines()]
    for name, words in data.transcripts("test").items():
        mine = [(float(begin), float(length), word) for u, _, begin, length, word in lines if u == name]
        assert [word for _, _, word in mine] == list(words)
        aligned = data.words("test")[name]
        for (begin, length, _), (_, first, end) in zip(mine, aligned, strict=True):
            assert begin == pytest.approx(first / 100, abs=0.06)
            assert begin + length == pytest.approx(end / 100, abs=0.06)


def test_a_moved_run_decodes_without_its_data(place: Path, run: Path, tmp_path: Path) -> None:
    here = decode_run(run, place / "corpus", "test", language="bigram")
    shutil.copytree(run, tmp_path / "elsewhere" / "run")
    shutil.copytree(place / "corpus" / "test", tmp_path / "elsewhere" / "heard")
    moved = tmp_path / "elsewhere" / "run"
    assert not Bundle.open(moved).data.exists()
    there = decode_run(moved, tmp_path / "elsewhere" / "heard", "test", language="bigram")
    assert there.folder == moved / "decode" / "heard-bigram"
    assert there.report["split"] == "heard", "a folder that is one split, whatever is asked for"
    assert [item.words for item in there.utterances] == [item.words for item in here.utterances]
    assert there.report["tuned_on"] == "data-dev", "chosen before the run was moved"
    for path in (moved / "acoustic").rglob("*.json"):
        assert str(place) not in path.read_text()


def test_other_data_of_the_same_name_do_not_overwrite_results(place: Path, run: Path, tmp_path: Path) -> None:
    folders = []
    for name in ("one", "two", "one"):
        heard = tmp_path / name / "heard"
        if not heard.exists():
            shutil.copytree(place / "corpus" / "test", heard)
        folders.append(decode_run(run, heard, "test", language="flat").folder.name)
    assert folders == ["heard-flat", "heard-flat-2", "heard-flat"]


def test_how_often_what_was_said_was_decoded(place: Path, run: Path, tmp_path: Path) -> None:
    counts = []
    for where, corpus in (("one", "test"), ("two", "dev"), ("three", "test")):
        heard = tmp_path / where / "heard"
        shutil.copytree(place / "corpus" / corpus, heard)
        counts.append(decode_run(run, heard, "test", language="flat", settings=FIXED).report["decoded"])
    assert counts == [1, 1, 2], "a copy of a test set is the same test set; another of the same name is not"


def test_a_moved_run_without_data_says_so(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    with pytest.raises(DataError, match="its training data are not at .*; give --data"):
        decode_run(tmp_path / "run", None, "test", language="flat")


def test_ctc_is_decoded_by_its_own_graph(place: Path, data: PreparedData, tmp_path: Path) -> None:
    run = decodable_run.make_run(data, tmp_path / "run", objective="ctc")
    found = decode_run(run, None, "test", language="flat")
    assert found.report["wer"] == 0
    for item in found.utterances:
        for (begin, end), (_, first, last) in zip(item.times, data.words("test")[item.utterance], strict=True):
            assert begin == pytest.approx(first / 100, abs=0.08)
            assert first / 100 < end < last / 100 + 0.08, "a peak ends before its phone does"


@pytest.mark.slow
def test_processes_find_the_same(run: Path) -> None:
    one = decode_run(run, None, "test", language="flat", settings=FIXED)
    two = decode_run(run, None, "test", language="flat", settings=replace(FIXED, jobs=2))
    assert [(i.words, i.times) for i in one.utterances] == [(i.words, i.times) for i in two.utterances]
    assert two.report["decoded"] == 2, "it is counted how often a split was looked at"


def test_alternatives_are_different_and_ordered(run: Path) -> None:
    found = decode_run(run, None, "test", language="flat", settings=replace(FIXED, scale=0.05, nbest=3))
    rows = [json.loads(line) for line in (found.folder / "nbest.jsonl").read_text().splitlines()]
    for row, item in zip(rows, found.utterances, strict=True):
        assert row["best"][0]["words"] == " ".join(item.words)
        assert len({best["words"] for best in row["best"]}) == len(row["best"]) == 3
        assert [best["cost"] for best in row["best"]] == sorted(best["cost"] for best in row["best"])
