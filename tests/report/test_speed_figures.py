"""Figures of speed, on records written by hand: every learner takes ten steps a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_files import write_run
from roundelay.report.figure_spec import Figure
from roundelay.report.report_data import ReportData
from roundelay.report.report_writer import make_report_data
from roundelay.report.speed_figures import profiles, resilience, speed, traffic
from roundelay.runs.target import Target


@pytest.fixture
def data(tmp_path: Path) -> ReportData:
    write_run(tmp_path / "one", "synchronous", 1)
    for strategy in ("synchronous", "bmuf"):
        write_run(tmp_path / f"{strategy}-4", strategy, 4)
        write_run(tmp_path / f"{strategy}-4-slow", strategy, 4, slow=3.0)
    return make_report_data([tmp_path], Target(score="error", value=0.05))


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_time_throughput_and_speed_up_are_by_one_clock(data: ReportData) -> None:
    figures = by_name(list(speed(data)))
    assert figures.keys() >= {
        "time-to-target-wall", "throughput-wall", "speedup-throughput-wall", "efficiency-throughput-wall",
    }  # fmt: skip
    assert {figure.clock for figure in figures.values()} == {"wall"}
    assert not any(figure.empty for figure in figures.values())


def test_four_learners_are_four_times_as_fast_and_the_line_begins_at_one(data: ReportData) -> None:
    figures = by_name(list(speed(data)))
    for line in figures["speedup-throughput-wall"].series:
        assert line.points[0] == [1.0, 1.0]
        assert line.points[-1] == [4.0, pytest.approx(4.0, rel=0.01)]
    for line in figures["efficiency-throughput-wall"].series:
        assert line.points[-1][1] == pytest.approx(100.0, rel=0.01)


def test_without_a_target_there_is_no_time_to_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "bmuf", 2)
    names = by_name(list(speed(make_report_data([tmp_path]))))
    assert names.keys() == {"throughput-wall"}  # and one number of learners gives no speed-up


def test_a_missed_target_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "bmuf", 2)
    figures = by_name(list(speed(make_report_data([tmp_path], Target(score="error", value=0.0)))))
    (line,) = figures["time-to-target-wall"].series
    assert (line.points, line.note) == ([], "not reached")


def test_bytes_are_counted_per_frame(data: ReportData) -> None:
    (figure,) = traffic(data)
    assert {line.points[0][0] for line in figure.series if line.points} == {1000 / 16}


def test_lines_over_slowness_need_a_straggler(data: ReportData, tmp_path: Path) -> None:
    figures = by_name(list(resilience(data)))
    line = next(iter(figures["straggler-throughput-wall"].series))
    assert [point[0] for point in line.points] == [1.0, 3.0]
    even = make_report_data([tmp_path / "one"])
    assert all(figure.empty for figure in resilience(even))


def test_profiles_need_several_conditions(data: ReportData) -> None:
    assert list(profiles(data)) == []
