"""Lexica and language models other than those of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import decodable_run
from decodable_run import FIXED
from roundelay.errors import DataError
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.grammar import build_grammar
from roundelay.speech.decoding.split_decoding import DecodeSettings, decode_run


@pytest.fixture(scope="module")
def place() -> Path:
    return decodable_run.place()


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil, with its data as far away as they were."""
    return decodable_run.copy_run(tmp_path)


def test_another_lexicon_limits_what_is_recognised(run: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("SIM S IY M\nMA M AA\n")
    found = decode_run(run, None, "test", settings=replace(FIXED, lexicon=tmp_path / "two.txt"))
    assert found.report["language"] == "two-flat"
    assert {word for item in found.utterances for word in item.words} <= {"SIM", "MA"}
    assert all(len(item.times) == len(item.words) for item in found.utterances)


def test_another_language_model_counts(run: Path, tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-99 <s>\n-0.3 </s>\n-0.3 MA\n\n\\end\\\n")
    found = decode_run(run, None, "test", settings=replace(FIXED, arpa=tmp_path / "lm.arpa"))
    assert {word for item in found.utterances for word in item.words} == {"MA"}


def test_words_that_are_said_and_cannot_be_recognised_are_named(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one.txt").write_text("MA M AA\n")
    decode_run(run, None, "test", settings=replace(FIXED, lexicon=tmp_path / "one.txt"))
    assert "words are not in the lexicon, so they count as errors: AS" in caplog.text
    caplog.clear()
    decode_run(run, None, "test", language="flat", settings=FIXED)
    assert "not in the lexicon" not in caplog.text
    with pytest.raises(DataError, match="no weights tuned for one-flat"):
        decode_run(run, None, "test", settings=DecodeSettings(weights_of=run, lexicon=tmp_path / "one.txt"))


def test_a_lexicon_with_a_missing_phone_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("MA M AA\nZOO Z UW\n")
    with pytest.raises(DataError, match=r"'ZOO' has the phone 'Z', .* not trained on; write it with AA IY M S"):
        build_grammar(Bundle.open(run), tmp_path / "graph", lexicon=tmp_path / "lexicon.txt")


def test_a_graph_of_another_run_is_refused(run: Path) -> None:
    path = run / "acoustic" / "graphs" / "flat.fst"
    path.write_bytes(bytes(path.stat().st_size))  # as long as before, so that the size does not tell
    with pytest.raises(DataError, match=r"flat.fst: changed since the run was trained; copy the run again"):
        decode_run(run, None, "test", language="flat", settings=FIXED)
