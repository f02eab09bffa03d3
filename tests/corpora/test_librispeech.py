"""LibriSpeech from a tiny folder of the shape of the original."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_files import write_audio, write_librispeech
from imported_corpus import imported, words
from roundelay import corpora
from roundelay.corpora.importer import import_corpus
from roundelay.errors import DataError


def test_librispeech_in_any_parts(tmp_path: Path) -> None:
    found = imported("librispeech", write_librispeech(tmp_path / "in"), tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 4, "dev": 2, "test-other": 2}
    assert words(found["dev"])["1272-134315-0001"] == "AS YOU KNOW"


def test_librispeech_with_something_missing(tmp_path: Path) -> None:
    chapter = write_librispeech(tmp_path / "in") / "LibriSpeech" / "train-clean-5" / "1088" / "134315"
    (chapter / "1088-134315-0001.flac").rename(chapter / "1088-134315-0009.flac")
    with pytest.raises(DataError, match=r"trans\.txt:2: the audio of '1088-134315-0001' is not there"):
        import_corpus(corpora.load("librispeech"), tmp_path / "in", tmp_path / "out")
    write_audio(chapter / "1088-134315-0001.flac")
    with pytest.raises(DataError, match="no transcript of '1088-134315-0009'"):
        import_corpus(corpora.load("librispeech"), tmp_path / "in", tmp_path / "out")
    with pytest.raises(DataError, match="not LibriSpeech"):
        import_corpus(corpora.load("librispeech"), tmp_path / "out", tmp_path / "out2")
