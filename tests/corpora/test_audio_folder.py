"""A folder of audio with a table of what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_files import write_audio, write_lines
from imported_corpus import imported
from roundelay import corpora
from roundelay.corpora.importer import import_corpus
from roundelay.errors import DataError


def test_a_folder_with_a_table(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in ("ann/one.wav", "ann/two 2.flac", "bob/one.ogg", "cid.mp3"):
        write_audio(source / name)
    rows = ["ann/one.wav\thello there", "ann/two 2.flac\tgood bye", "bob/one.ogg\tyes", "cid.mp3\tno"]
    write_lines(source / "transcripts.tsv", *rows)
    found = imported("folder", source, tmp_path / "out")
    every = {u.id: u for us in found.values() for u in us}
    assert set(every) == {"ann-one", "ann-two_2", "bob-one", "cid-cid"}
    assert every["ann-two_2"].words == ("good", "bye")
    heads = ["path\tspeaker\ttext\tsplit", "ann/one.wav\tx y\thello\ttrain", "ann/two 2.flac\tx y\tbye\ttrain"]
    write_lines(source / "transcripts.tsv", *heads, "bob/one.ogg\tb\tyes\tvalid", "cid.mp3\tc\tno\ttest")
    found = imported("folder", source, tmp_path / "out2")
    assert {name: [u.speaker for u in us] for name, us in found.items()} == {
        "train": ["x_y", "x_y"],
        "dev": ["b"],
        "test": ["c"],
    }


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (["a.wav\thello"], r"no transcript of b\.wav, whose audio is there"),
        (["a.wav\thello", "b.wav\thi", "c.wav\tyo"], r"transcripts\.tsv:3: the audio is not there: c\.wav"),
        (["a.wav\thello", "a.wav\thi"], r"transcripts\.tsv:2: a\.wav is already in line 1"),
        (["a.wav"], r"transcripts\.tsv:1: path TAB text"),
        (["path\twords", "a.wav\thello"], r"transcripts\.tsv:1: unknown column 'words'"),
        (["a.wav\thello", "b.wav\thi"], "2 speakers cannot be divided"),
    ],
)
def test_a_folder_with_something_wrong(tmp_path: Path, rows: list[str], what: str) -> None:
    for name in ("a.wav", "b.wav"):
        write_audio(tmp_path / "in" / name)
    write_lines(tmp_path / "in" / "transcripts.tsv", *rows)
    with pytest.raises(DataError, match=what):
        import_corpus(corpora.load("folder"), tmp_path / "in", tmp_path / "out")
