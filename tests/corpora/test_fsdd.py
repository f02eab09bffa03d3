"""Spoken digits from a tiny folder of the shape of the original."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_files import write_audio
from imported_corpus import imported, words
from roundelay import corpora
from roundelay.corpora.data_directory import read_split
from roundelay.corpora.importer import import_corpus
from roundelay.errors import DataError


def test_fsdd_with_the_ids_of_the_pack(tmp_path: Path, corpora: Path) -> None:
    for name in ("0_george_0", "7_george_49", "3_theo_12", "9_yweweler_5"):
        write_audio(tmp_path / "fsdd-1.0.10" / "recordings" / f"{name}.wav", rate=8000)
    found = imported("fsdd", tmp_path / "fsdd-1.0.10", tmp_path / "out")
    assert words(found["train"]) == {"george-0-00": "ZERO", "george-7-49": "SEVEN"}
    assert words(found["dev"]) == {"theo-3-12": "THREE"}
    assert words(found["test"]) == {"yweweler-9-05": "NINE"}
    for split, utterances in found.items():
        pack = words(read_split(corpora / "fsdd" / split))
        assert words(utterances).items() <= pack.items()


def test_fsdd_with_a_wrong_name(tmp_path: Path) -> None:
    write_audio(tmp_path / "in" / "recordings" / "seven_george_1.wav")
    with pytest.raises(DataError, match=r"seven_george_1\.wav: the name is not digit_speaker_number"):
        import_corpus(corpora.load("fsdd"), tmp_path / "in", tmp_path / "out")
