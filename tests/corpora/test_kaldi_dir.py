"""Data directories of Kaldi."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from corpus_files import write_lines, write_split_files
from imported_corpus import imported
from roundelay.corpora import kaldi_dir
from roundelay.errors import DataError


def test_kaldi_directories_with_pipes_features_and_alignments(tmp_path: Path) -> None:
    source = tmp_path / "data"
    for split, speakers in (("train", "ab"), ("dev", "c")):
        write_split_files(source / split, *(f"{speaker}-1" for speaker in speakers))
    write_lines(source / "train" / "wav.scp", "a-1 sox audio/a-1.wav -t wav - |", "b-1 cat audio/b-1.wav |")
    matrix = b"\0BFM \x04\x01\0\0\0\x04\x02\0\0\0" + np.array([1.5, -2.0], "<f4").tobytes()
    for split, names in (("train", ["a-1", "b-1"]), ("dev", ["c-1"])):
        (source / f"{split}.ark").write_bytes(b"".join(name.encode() + b" " + matrix for name in names))
        places = [f"{name} {split}.ark:{4 + i * (4 + len(matrix))}" for i, name in enumerate(names)]
        write_lines(source / split / "feats.scp", *places)
    write_lines(source / "lexicon.txt", "HELLO HH AX L OW")
    found = imported("kaldi", source, tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 2, "dev": 1}
    features = dict(kaldi_dir.read_features(tmp_path / "out" / "train"))
    assert features["b-1"].tolist() == [[1.5, -2.0]]
    assert (tmp_path / "out" / "lexicon.txt").read_text() == "HELLO HH AX L OW\n"
    for i, name in ((2, "b-1"), (10, "c-1"), (1, "a-1")):
        (tmp_path / f"ali.{i}.gz").write_bytes(gzip.compress(f"{name} 3 3 {i}\n".encode()))
    assert [(name, ints.tolist()) for name, ints in kaldi_dir.read_alignments(tmp_path)] == [
        ("a-1", [3, 3, 1]),
        ("b-1", [3, 3, 2]),
        ("c-1", [3, 3, 10]),
    ]
    with pytest.raises(DataError, match=r"no ali\.1\.gz"):
        list(kaldi_dir.read_alignments(source))


def test_one_kaldi_directory_is_divided_by_speakers(tmp_path: Path) -> None:
    write_split_files(tmp_path / "in", *(f"{speaker}-{i}" for speaker in "abcdefghij" for i in range(3)))
    found = imported("kaldi", tmp_path / "in", tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 24, "dev": 3, "test": 3}
