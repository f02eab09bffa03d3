"""An import is done once, refuses what it would overwrite, and leaves nothing half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_files import write_librispeech
from roundelay import corpora
from roundelay.corpora.data_directory import find_splits
from roundelay.corpora.importer import import_corpus
from roundelay.errors import DataError
from roundelay.formats.text_tables import write_table


def test_a_second_import_does_nothing_and_another_is_refused(tmp_path: Path) -> None:
    write_librispeech(tmp_path / "in")
    corpus, out = corpora.load("librispeech"), tmp_path / "out"
    import_corpus(corpus, tmp_path / "in", out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    import_corpus(corpus, tmp_path / "in", out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    with pytest.raises(DataError, match="contains another corpus"):
        import_corpus(corpora.load("kaldi"), tmp_path / "in", out)
    with pytest.raises(DataError, match="contains other files"):
        import_corpus(corpus, tmp_path / "in", tmp_path / "in" / "LibriSpeech")
    with pytest.raises(DataError, match="no such folder"):
        import_corpus(corpus, tmp_path / "gone", tmp_path / "out2")
    with pytest.raises(DataError, match="into its own folder"):
        import_corpus(corpus, tmp_path / "in", tmp_path / "in")


def test_an_interrupted_import_is_no_corpus_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_librispeech(tmp_path / "in")
    corpus, out = corpora.load("librispeech"), tmp_path / "out"
    calls = []

    def interrupted(path: Path, rows: object) -> None:
        calls.append(path.name)
        if len(calls) == 3:  # the first split's wav.scp
            raise KeyboardInterrupt
        write_table(path, rows)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr("roundelay.corpora.data_directory.write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_corpus(corpus, tmp_path / "in", out)
    with pytest.raises(DataError, match="no corpus here"):
        find_splits(out)
    monkeypatch.undo()
    import_corpus(corpus, tmp_path / "in", out)
    assert set(find_splits(out)) == {"train", "dev", "test-other"}
