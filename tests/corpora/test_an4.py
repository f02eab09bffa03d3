"""AN4 from a tiny folder of the shape of the original, and from its pack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from corpus_files import write_lines, write_sphere
from imported_corpus import imported, words
from roundelay import corpora
from roundelay.corpora.data_directory import find_splits, read_split
from roundelay.corpora.importer import import_corpus
from roundelay.errors import DataError


def an4(root: Path) -> Path:
    people = ["fash", "mgah", "fbbh", "mjwl"]
    noise = np.random.default_rng(0).integers(-999, 999, 4000).astype(np.int16)
    for part, speakers in (("train", people), ("test", ["fcaw"])):
        clstk = "an4_clstk" if part == "train" else "an4test_clstk"
        names = [f"{clstk}/{speaker}/an{251 + i}-{speaker}-b" for i, speaker in enumerate(speakers)]
        for name in names:
            write_sphere(root / "wav" / f"{name}.sph", [noise], rate=16000, coding="pcm10")
        write_lines(root / "etc" / f"an4_{part}.fileids", *names)
        lines = [f"<s> ENTER {'SIX' * (i % 2)} </s> ({name.rpartition('/')[2]})" for i, name in enumerate(names)]
        write_lines(root / "etc" / f"an4_{part}.transcription", *lines)
    write_lines(root / "etc" / "an4.dic", "ENTER EH N T ER", "SIX S IH K S", "ZERO Z IH R OW", "ZERO(2) Z IY R OW")
    write_lines(root / "etc" / "an4.ug.lm", "\\data\\")
    return root


def test_an4(tmp_path: Path) -> None:
    an4(tmp_path / "original" / "an4-b567")
    found = imported("an4", tmp_path / "original", tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 3, "dev": 1, "test": 1}
    assert words(found["test"]) == {"fcaw-an251-b": "ENTER"}
    assert words(found["train"] + found["dev"])["mgah-an252-b"] == "ENTER SIX"
    assert "ZERO Z IY R OW\n" in (tmp_path / "out" / "lexicon.txt").read_text()
    assert (tmp_path / "out" / "lm" / "an4.unigram.arpa").is_file()


@pytest.mark.parametrize(
    ("breaking", "what"),
    [
        ("audio", "the audio is not there"),
        ("transcript", "no transcript of 'an251-fash-b'"),
        ("form", r"an4_train.transcription:1: '<s> WORDS </s> \(name\)' is wanted"),
        ("fileids", "not AN4"),
    ],
)
def test_an4_with_something_missing(tmp_path: Path, breaking: str, what: str) -> None:
    root = an4(tmp_path / "an4")
    if breaking == "audio":
        (root / "wav" / "an4_clstk" / "fash" / "an251-fash-b.sph").unlink()
    elif breaking == "fileids":
        (root / "etc" / "an4_train.fileids").unlink()
    else:
        write_lines(root / "etc" / "an4_train.transcription", "ENTER" if breaking == "form" else "<s> A </s> (x)")
    with pytest.raises(DataError, match=what):
        import_corpus(corpora.load("an4"), root, tmp_path / "out")
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_the_an4_pack(corpora: Path, tmp_path: Path) -> None:
    from roundelay.corpora import load

    import_corpus(load("an4"), corpora / "an4", tmp_path / "out")
    found = {name: len(read_split(folder)) for name, folder in find_splits(tmp_path / "out").items()}
    assert found == {"train": 740, "dev": 103, "test": 105}
    assert (tmp_path / "out" / "lexicon.txt").is_file()
    assert (tmp_path / "out" / "lm" / "an4.unigram.arpa").is_file()
