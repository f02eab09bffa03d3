"""Alignments are written as other tools write them, and come back the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import tone_corpus
from roundelay.formats.alignment_files import read_ctm, read_textgrid, write_ctm
from roundelay.speech.preparation.alignment_export import export_alignments
from roundelay.speech.preparation.pipeline import open_prepared, prepare


@pytest.mark.parametrize("kind", ["ctm", "textgrid"])
def test_alignments_go_out_and_come_back(toned: str, tmp_path: Path, kind: str) -> None:
    data = Path(shutil.copytree(toned, tmp_path / "data"))
    given = open_prepared(data)
    written = export_alignments(given, kind)
    if kind == "ctm":
        assert {path.name for path in written} == {f"{s}.{t}.ctm" for s in given.splits for t in ("phones", "words")}
        both = {**read_ctm(data / "export" / "train.phones.ctm"), **read_ctm(data / "export" / "dev.phones.ctm")}
        write_ctm(tmp_path / "all.ctm", both)
        source = tmp_path / "all.ctm"
    else:
        source = data / "export"
        tiers = read_textgrid(source / "dev" / f"{given.utterances('dev')[0].id}.TextGrid")
        assert [i.label for i in tiers["words"]] == list(given.utterances("dev")[0].words)
    again = prepare(
        Path(toned).parent / "corpus", tmp_path / "again", replace(tone_corpus.SETTINGS, alignments=source)
    ).data
    assert again.num_senones == 3 * len(again.lexicon.phones)
    for split in given.splits:
        for name in given.alignments(split):
            assert again.phones(split)[name].tolist() == given.phones(split)[name].tolist()
            assert again.words(split)[name].tolist() == given.words(split)[name].tolist()
