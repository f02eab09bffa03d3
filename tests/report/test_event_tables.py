"""Tables of events and of significance."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_files import decode_run, read_csv, write_run
from roundelay.report.event_tables import holm
from roundelay.report.report_writer import write_report


def test_holm_adjusts_for_how_many_there_are() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_differences_in_word_error_rate_are_tested(tmp_path: Path) -> None:
    pytest.importorskip("kaldialign")
    for strategy, wrong in (("bmuf", 2), ("adpsgd", 4), ("asgd", 30)):
        decode_run(write_run(tmp_path / strategy, strategy, 2), wrong)
    report = write_report(tmp_path, tmp_path / "out")
    rows = read_csv(report.parent / "report" / "significance.csv")
    verdicts = {(row["better"], row["worse"]): row["verdict"] for row in rows}
    assert verdicts == {
        ("bmuf", "adpsgd"): "not significant",
        ("bmuf", "asgd"): "differ",
        ("adpsgd", "asgd"): "differ",
    }


def test_decodings_that_cannot_be_compared_are_said(tmp_path: Path) -> None:
    pytest.importorskip("kaldialign")
    for strategy in ("bmuf", "adpsgd"):
        decode_run(write_run(tmp_path / strategy, strategy, 2), 2)
    (tmp_path / "bmuf" / "decode" / "tiny-test-bigram" / "utterances.jsonl").write_text('{"utterance": "u0", "refer')
    page = write_report(tmp_path, tmp_path / "out").read_text(encoding="utf-8")
    assert "Could not compare" in page
