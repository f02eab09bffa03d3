"""Fisher from a tiny folder of the shape of the original."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_files import write_call, write_lines
from imported_corpus import imported
from roundelay import corpora
from roundelay.corpora.importer import import_corpus
from roundelay.errors import DataError


def fisher(root: Path, calls: tuple[int, ...] = (1, 2, 3, 4)) -> Path:
    for call in calls:
        name = f"fe_03_{call:05d}"
        write_call(root / "fe_03_p1_sph1" / "audio" / "000" / f"{name}.sph")
        write_lines(
            root / "fe_03_p1_tran" / "data" / "trans" / "000" / f"{name}.txt",
            f"# {name}.sph",
            "# Transcribed at the LDC",
            "",
            "0.10 0.90 A: an- so the topic is",
            "1.00 1.90 B: [laughter] oh [noise] yeah",
            "1.95 2.00 A: [laughter]",
            "2.00 2.90 B: (( i do not know ))",
        )
    return root


def test_fisher_by_sides_and_by_persons(tmp_path: Path) -> None:
    found = imported("fisher", fisher(tmp_path / "in"), tmp_path / "out")
    every = {u.id: u for us in found.values() for u in us}
    assert len(every) == 8
    assert set(found) == {"train", "dev", "test"}
    other = every["fe_03_00001-B_000100-000190"]
    assert (other.words, other.channel, other.begin) == (("OH", "YEAH"), 1, 1.0)
    header = "CALL_ID,DATE_TIME,TOPICID,SIG_GRADE,CNV_GRADE,APIN,ASX.DL,APHNUM,APHSET,APHTYP,BPIN,BSX.DL"
    rows = [f"{call:05d},x,y,3,3,{100 + call},m.a,1,2,3,{200 + call % 2},f.a" for call in (1, 2, 3, 4)]
    write_lines(tmp_path / "in" / "fe_03_p1_tran" / "doc" / "fe_03_p1_calldata.tbl", header, *rows)
    found = imported("fisher", tmp_path / "in", tmp_path / "out2")
    assert len({u.speaker for us in found.values() for u in us}) == 6


def test_fisher_with_something_wrong(tmp_path: Path) -> None:
    root = fisher(tmp_path / "in")
    text = root / "fe_03_p1_tran" / "data" / "trans" / "000" / "fe_03_00002.txt"
    text.write_text("# x\n1.0 0.5 A: hello\n")
    with pytest.raises(DataError, match=r"fe_03_00002\.txt:2: an utterance from 1\.0 s to 0\.5 s"):
        import_corpus(corpora.load("fisher"), root, tmp_path / "out")
    text.write_text("1.0 1.5 C: hello\n")
    with pytest.raises(DataError, match=r"fe_03_00002\.txt:1: 'begin end A: words' is wanted"):
        import_corpus(corpora.load("fisher"), root, tmp_path / "out")
    (root / "fe_03_p1_sph1" / "audio" / "000" / "fe_03_00001.sph").unlink()
    with pytest.raises(DataError, match=r"the audio of the call \(fe_03_00001\.sph\) is not there"):
        import_corpus(corpora.load("fisher"), root, tmp_path / "out")
