from __future__ import annotations

import json
from pathlib import Path

from report_files import HOSTILE, write_study
from roundelay.report.report_writer import write_report


def test_a_study_has_an_answer_and_ranks(tmp_path: Path) -> None:
    page = write_report(write_study(tmp_path / "study")).read_text(encoding="utf-8")
    summary = json.loads((tmp_path / "study" / "report.json").read_text())["summary"]
    assert summary["title"] == f"A study {HOSTILE}"
    assert "<img" not in page
    assert "time to target, virtual" in page
    assert 'id="data-time-to-target-virtual"' in page
    assert 'id="data-speedup-target-virtual"' in page
    assert summary["answer"]["headline"]


def test_what_is_wrong_with_a_study_is_in_its_report(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", missing=1)
    runs = study / "runs"
    (runs / "bmuf-1-seed-1" / "record.jsonl").unlink()
    record = (runs / "bmuf-1-seed-2" / "record.jsonl").read_text()
    (runs / "bmuf-1-seed-2" / "record.jsonl").write_text(record[:5000])
    cell = json.loads((runs / "synchronous-4-seed-1" / "cell.json").read_text())
    cell |= {"status": "diverged", "error": "the loss is nan", "scores": {}}
    (runs / "synchronous-4-seed-1" / "cell.json").write_text(json.dumps(cell))
    (runs / "synchronous-4-seed-2" / "cell.json").write_text('{"name": "sync')
    page = write_report(study).read_text(encoding="utf-8")
    for words in (
        "bmuf-4-seed-2",
        "there is no record",
        "is incomplete",
        "the loss is nan",
        "diverged",
        "Not computed yet: 1 run",
    ):
        assert words in page, words


def test_a_study_of_which_nothing_is_computed_has_a_report(tmp_path: Path) -> None:
    page = write_report(write_study(tmp_path / "study", missing=8)).read_text(encoding="utf-8")
    assert "Not computed yet: 8 runs" in page


def test_a_run_that_was_cut_short_is_not_one_that_is_missing(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study")
    (study / "runs" / "bmuf-4-seed-2" / "cell.json").unlink()
    page = write_report(study).read_text(encoding="utf-8")
    assert "Some runs did not end well: 1 interrupted." in page
    assert "Not computed yet" not in page
