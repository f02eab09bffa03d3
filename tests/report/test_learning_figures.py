"""Figures of scores, on records written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from report_files import decode_run, write_run
from roundelay.report.figure_spec import Series, Style
from roundelay.report.learning_figures import accuracy, curve, failures, learning, ordered, spread_point
from roundelay.report.report_writer import make_report_data
from roundelay.runs.target import Target


def test_a_curve_is_the_median_over_seeds_with_its_range(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        run = write_run(tmp_path / f"seed-{seed}", "bmuf", 2)
        (run / "settings.toml").write_text((run / "settings.toml").read_text().replace("seed = 1", f"seed = {seed}"))
        lines = [json.loads(line) for line in (run / "record.jsonl").read_text().splitlines()]
        for line in lines:
            if line["event"] == "evaluate":
                line["error"] = seed / line["minibatch"]
        (run / "record.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    data = make_report_data([tmp_path])
    (row,) = data.rows
    points = curve(data, row, "error", "frames")
    assert [point[0] for point in points] == [320, 640, 960]
    assert points[0][1:] == pytest.approx([100 * 2 / 20, 100 * 1 / 20, 100 * 3 / 20])  # in percent


def test_a_point_is_a_median_with_its_range() -> None:
    assert spread_point({"median": 2.0, "low": 1.0, "high": None, "values": [1.0, 2.0, None]}) == [[2.0, 1.0, 2.0]]
    assert spread_point({"median": None, "low": 1.0, "high": None, "values": [1.0, None, None]}) == []
    assert spread_point(None) == []


def test_the_reference_is_first_then_the_best_then_those_without_a_point() -> None:
    lines = [
        Series(Style(name, learners, facet), name, [[value, value, value]] if value else [])
        for name, learners, facet, value in (
            ("none", 4, "4", 0.0), ("worst", 4, "4", 9.0), ("best", 4, "4", 1.0), ("reference", 0, "4", 5.0),
            ("alone", 1, "1", 3.0),
        )
    ]  # fmt: skip
    assert [line.label for line in ordered(lines)] == ["reference", "best", "worst", "none", "alone"]
    assert [line.label for line in ordered(lines, most_first=True)][1:3] == ["worst", "best"]


def test_scores_are_against_frames_and_against_each_clock(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "bmuf", 2, clock="virtual")
    write_run(tmp_path / "b", "bmuf", 2, clock="wall")
    figures = {f.name: f for f in learning(make_report_data([tmp_path], Target(score="error", value=0.04)))}
    assert figures.keys() == {
        f"{score}-{over}" for score in ("loss", "error") for over in ("frames", "time-virtual", "time-wall")
    } | {"training-loss"}
    assert [(rule.label, rule.y) for rule in figures["error-frames"].rules] == [("target", 4.0)]
    assert figures["loss-frames"].rules == []
    assert len(figures["loss-time-wall"].series) == 1


def test_error_rates_have_intervals_and_what_is_missing_is_said(tmp_path: Path) -> None:
    decode_run(write_run(tmp_path / "a", "bmuf", 2), 12)
    write_run(tmp_path / "b", "adpsgd", 2)
    figures = {figure.name: figure for figure in accuracy(make_report_data([tmp_path]))}
    lines = {line.label: line for line in figures["wer"].series}
    assert lines["bmuf"].points == [[pytest.approx(10.0), pytest.approx(7.0), pytest.approx(13.0)]]
    assert (lines["adpsgd"].points, lines["adpsgd"].note) == ([], "not decoded")
    assert figures["error"].series[0].points[0][0] == pytest.approx(3.0)


def test_states_of_runs_that_are_not_done(tmp_path: Path) -> None:
    (write_run(tmp_path / "run", "bmuf", 2) / "model.json").unlink()
    (row,) = make_report_data([tmp_path]).rows
    assert failures(row) == "interrupted"
    assert failures({**row, "statuses": {"done": 2}}) == ""
    assert failures({**row, "statuses": {"done": 1, "diverged": 2}}) == "2 diverged"
