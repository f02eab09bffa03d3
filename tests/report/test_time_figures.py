"""Figures of where time goes, on records written by hand: 70 % computing, 10 % communicating, 20 % waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_files import write_run
from roundelay.report.report_data import ReportData
from roundelay.report.report_writer import make_report_data
from roundelay.report.time_figures import apart, shares, shown_runs, timelines


@pytest.fixture
def data(tmp_path: Path) -> ReportData:
    write_run(tmp_path / "run", "bmuf", 2, steps=30)
    return make_report_data([tmp_path])


def test_shares_of_time_by_kind_and_by_learner(data: ReportData) -> None:
    whole, each = shares(data)
    (bar,) = whole.bars
    assert bar.parts == pytest.approx({"compute": 70, "communicate": 10, "wait": 20}, rel=0.01)
    assert [bar.label for bar in each.bars] == ["learner 0", "learner 1"]
    assert {bar.run for bar in each.bars} == {"run"}
    assert each.bars[0].parts == pytest.approx({"compute": 70, "communicate": 10, "wait": 20}, rel=0.01)


def test_a_timeline_can_be_unpacked(data: ReportData) -> None:
    (line,) = timelines(data)
    assert (line["run"], line["strategy"], line["learners"], line["clock"]) == ("run", "bmuf", 2, "wall")
    assert [row["member"] for row in line["rows"]] == ["learner 0", "learner 1"]
    packed, at, seen = line["rows"][0]["spans"], 0, []
    for since, length, kind in zip(packed[::3], packed[1::3], packed[2::3], strict=True):
        at += since
        seen.append((line["begin"] + at * line["tick"], length * line["tick"], line["kinds"][kind]))
    assert seen[0] == (pytest.approx(0.0, abs=1e-4), pytest.approx(0.07, abs=1e-4), "compute")
    assert seen[1] == (pytest.approx(0.07, abs=1e-4), pytest.approx(0.01, abs=1e-4), "communicate")
    assert len(seen) == 3 * 30


def test_staleness_and_distance(data: ReportData) -> None:
    figures = {figure.name: figure for figure in apart(data)}
    (line,) = figures["staleness"].series
    assert sum(share for _, _, share in line.points) == pytest.approx(100, abs=0.01)
    assert [share for _, _, share in line.points] == pytest.approx([100 / 3] * 3, rel=0.01)  # 0, 1, 2 in turn
    (line,) = figures["distance-frames"].series
    assert {point[1] for point in line.points} == {0.2}


def test_runs_without_spans_are_not_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "bmuf", 2)
    kept = [line for line in (run / "record.jsonl").read_text().splitlines() if '"seconds"' not in line]
    (run / "record.jsonl").write_text("\n".join(kept) + "\n")
    data = make_report_data([tmp_path])
    assert shown_runs(data) == []
    assert timelines(data) == []
