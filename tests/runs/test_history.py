from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from report_files import write_run
from roundelay.runs.history import read_details, straggler


def test_what_a_run_did_is_read(tmp_path: Path) -> None:
    details = read_details(write_run(tmp_path / "run", "bmuf", 2))
    assert details.problems == []
    assert details.clock == "wall"
    assert details.frames == 30 * 2 * 16
    assert details.total_bytes == 60_000
    assert details.staleness == {0.0: 20, 1.0: 20, 2.0: 20}
    assert details.shares() == pytest.approx({"compute": 0.7, "communicate": 0.1, "wait": 0.2, "serve": 0.0}, abs=1e-6)
    assert [point["frames"] for point in details.points] == [320.0, 640.0, 960.0]
    assert details.points[-1]["scores"]["error"] == pytest.approx(0.8 / 30)
    assert len(details.spans["learner 1"]) == 90


def test_a_simulated_run_is_read(runs: Path) -> None:
    details = read_details(runs / "adpsgd-4")
    assert details.clock == "virtual"
    assert details.frames == 80 * 16
    assert details.problems == []
    assert len(details.points) == 4
    assert details.points[-1]["frames"] == 80 * 16
    assert details.staleness


def test_evaluating_is_left_out_of_the_time(tmp_path: Path) -> None:
    lines = [
        {"event": "step", "member": "learner 0", "clock": "wall", "time": 1.0, "frames": 8, "loss": 1.0},
        {"event": "evaluate", "member": "learner 0", "clock": "wall", "time": 1.0, "seconds": 5.0},
        {"event": "evaluate", "member": "learner 0", "clock": "wall", "time": 6.0, "minibatch": 1, "loss": 0.9},
        {"event": "step", "member": "learner 0", "clock": "wall", "time": 7.0, "frames": 8, "loss": 1.0},
    ]
    (tmp_path / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    details = read_details(tmp_path)
    assert details.seconds == 2.0
    assert details.points[0]["seconds"] == 1.0
    assert details.points[0]["frames"] == 8


def test_a_record_cut_off_in_a_line_is_read_up_to_it_and_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "bmuf", 1)
    text = (run / "record.jsonl").read_text()
    (run / "record.jsonl").write_text(text[: len(text) // 2])
    (run / "model.json").unlink()
    details = read_details(run)
    assert 0 < details.frames < 480
    assert not details.finished
    assert any("is incomplete" in problem for problem in details.problems)


def test_every_line_may_be_garbage(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").write_bytes(
        b'\xff\xfe{{{\n[1, 2]\n"text"\n{"event": 3}\n{"time": "soon", "event": "step"}\n\n{}'
    )
    details = read_details(tmp_path)
    assert details.frames == 0
    assert any("3 lines are incomplete" in problem for problem in details.problems)
    assert any("without an event" in problem for problem in details.problems)


def test_nothing_at_all_is_a_problem_and_no_error(tmp_path: Path) -> None:
    details = read_details(tmp_path)
    assert set(details.problems) == {"settings.toml is missing", "run.json is missing", "there is no record"}


def test_values_that_are_not_finite_mean_divergence(tmp_path: Path) -> None:
    line = {"event": "step", "member": "learner 0", "clock": "virtual", "time": 0.1, "frames": 8, "loss": math.nan}
    (tmp_path / "record.jsonl").write_text(json.dumps(line) + "\n")
    assert read_details(tmp_path).diverged


def test_unjoined_parts_of_a_killed_run_are_read(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "bmuf", 1)
    (run / "record.jsonl").rename(run / "record-0.jsonl")
    details = read_details(run)
    assert details.frames == 480
    assert "the learners' records were never merged" in details.problems


@pytest.mark.parametrize(
    ("settings", "about", "factor"),
    [
        ({}, {}, 1.0),
        ({"cluster": {"stragglers": [{"learner": 1, "factor": 10.0}]}}, {}, 10.0),
        ({"cluster": {"stragglers": "none"}}, {"slow": {"3": 4.0}}, 4.0),
        ({"cluster": {"stragglers": [{"learner": 1, "factor": 10.0}]}}, {"on": "processes", "slow": {}}, 1.0),
        ({"cluster": 3}, {"slow": [1]}, 1.0),
    ],
)
def test_how_slow_the_straggler_is(settings: dict[str, object], about: dict[str, object], factor: float) -> None:
    assert straggler(settings, about) == factor
