"""What a study's summary makes of cells that came out well, badly or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roundelay.errors import CheckpointError
from roundelay.runs.target import Point
from roundelay.study.statistics import settled
from roundelay.study.summary import summarise
from study_files import fake_cell, made_up, plan_cell, write_folder


def test_ranks_times_and_speed_ups(tmp_path: Path) -> None:
    made_up(tmp_path)
    summary = summarise(tmp_path)
    rows = {(row["strategy"], row["learners"]): row for row in summary["rows"]}
    fast, slow = rows["fast", 4], rows["slow", 4]
    assert (fast["rank"], slow["rank"], rows["missed", 4]["rank"], rows["odd", 4]["rank"]) == (1, 2, None, None)
    assert fast["time"]["median"] == pytest.approx(1.02)
    assert fast["time"]["low"] == pytest.approx(1.01)
    assert fast["speedup"] == pytest.approx(4.0)
    assert fast["efficiency"] == pytest.approx(1.0)
    assert slow["speedup"] == pytest.approx(2.0)
    assert rows["missed", 4]["time"]["median"] is None
    assert rows["missed", 4]["hits"] == 0
    assert rows["missed", 4]["throughput_speedup"] == pytest.approx(10.0)
    assert fast["frames"]["median"] == 200
    assert summary["complete"]
    group = next(group for group in summary["groups"] if group["key"]["learners"] == 4)
    assert [row["strategy"] for row in group["rows"]] == ["fast", "slow", "missed", "odd"]
    json.dumps(summary, allow_nan=False)


def test_what_went_wrong_is_kept_and_marked(tmp_path: Path) -> None:
    cells = made_up(tmp_path)
    runs = tmp_path / "runs"
    bad = json.loads((runs / "fast-4-seed-1" / "cell.json").read_text())
    bad |= {"status": "diverged", "error": "learner 2: the loss is nan", "scores": {}, "seconds": None}
    (runs / "fast-4-seed-1" / "cell.json").write_text(json.dumps(bad))
    (runs / "fast-4-seed-2" / "cell.json").unlink()  # killed while it was computed
    (runs / "slow-4-seed-1" / "record.jsonl").unlink()
    torn = runs / "slow-4-seed-2" / "record.jsonl"
    torn.write_text(torn.read_text()[:-20])
    (runs / "slow-4-seed-3" / "cell.json").write_text('{"status": "do')
    write_folder(tmp_path, [*cells, plan_cell("later", 4, 1)])
    summary = summarise(tmp_path)
    found = {cell["name"]: cell for cell in summary["cells"]}
    assert len(found) == len(cells)
    assert found["fast-4-seed-1"]["status"] == "diverged"
    assert found["fast-4-seed-1"]["reached_seconds"] is None
    assert found["fast-4-seed-2"]["status"] == found["slow-4-seed-3"]["status"] == "interrupted"
    assert found["slow-4-seed-1"]["problems"] == "there is no record"
    assert found["slow-4-seed-1"]["reached_seconds"] is None
    assert found["slow-4-seed-2"]["problems"] == "record.jsonl: line 8 is incomplete"
    assert found["slow-4-seed-2"]["reached_seconds"] == pytest.approx(2.04)
    assert {fault["cell"] for fault in summary["faults"]} == {"fast-4-seed-1", "fast-4-seed-2", "slow-4-seed-3"}
    assert summary["missing"] == ["later-4-seed-1"]
    assert not summary["complete"]
    said = " ".join(summary["answer"]["sentences"])
    assert said.startswith("1 cell has not been computed yet")
    assert "Runs that diverged or failed: fast (1)." in said
    rows = {row["strategy"]: row for row in summary["rows"] if row["learners"] == 4}
    assert rows["fast"]["statuses"] == {"diverged": 1, "interrupted": 1, "done": 1}
    assert rows["fast"]["rank"] is None


def test_wall_and_virtual_time_are_kept_apart(tmp_path: Path) -> None:
    cells = [plan_cell(name, n, 1) for name, n in (("synchronous", 1), ("bmuf", 2))]
    cells += [
        cell | {"name": f"{cell['name']}-p", "on": "processes", "clock": "wall", "cluster": "this machine"}
        for cell in cells
    ]
    write_folder(tmp_path, cells)
    for cell in cells:
        fake_cell(tmp_path, cell, [0.5, 0.1], seconds=5.0 if cell["clock"] == "wall" else 1.0)
    summary = summarise(tmp_path)
    assert [row["speedup"] for row in summary["rows"]] == [1.0] * 4
    assert {(group["key"]["clock"], group["key"]["on"]) for group in summary["groups"]} == {
        ("virtual", "simulator"), ("wall", "processes"),
    }  # fmt: skip
    assert any("2 learners on processes" in line for line in summary["answer"]["sentences"])


def test_the_time_of_evaluations_is_left_out(tmp_path: Path) -> None:
    cell = plan_cell("bmuf", 2, 1, on="processes", clock="wall", cluster="this machine")
    write_folder(tmp_path, [cell])
    fake_cell(tmp_path, cell, [])
    lines = []
    for k, error in enumerate((0.5, 0.1)):  # two steps of 1 s, each followed by 3 s of evaluation
        for learner in (0, 1):
            now = {"member": f"learner {learner}", "clock": "wall"}
            met = {"event": "evaluate", **now, "time": 4.0 * k + 1.0, "seconds": 3.0}
            step = {"event": "step", **now, "time": 4.0 * k + 1.0, "minibatch": 2 * k + learner, "frames": 100}
            seen = {"event": "evaluate", **now, "time": 4.0 * k + 3.5, "minibatch": 2 * k + 2, "error": error}
            lines += [step | {"loss": error}, *([seen] if learner == 0 else []), met]
    run = tmp_path / "runs" / cell["name"]
    (run / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "cell.json").write_text(json.dumps(cell | {"status": "done", "scores": {"error": 0.1}, "seconds": 8.0}))
    (found,) = summarise(tmp_path)["cells"]
    assert (found["seconds"], found["frames_per_second"]) == (2.0, 200.0)
    assert (found["reached_seconds"], found["reached_frames"]) == (2.0, 400.0)
    assert [point["seconds"] for point in found["curve"]] == [1.0, 2.0]


def test_a_folder_that_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"study\.json is missing"):
        summarise(tmp_path)


def test_a_trial_is_judged_by_more_than_its_last_evaluation() -> None:
    def points(*errors: float) -> list[Point]:
        return [{"frames": 0.0, "minibatch": k, "seconds": 0.0, "scores": {"error": e}} for k, e in enumerate(errors)]

    assert settled(points(0.9, 0.5, 0.4, 0.3, 0.2, 0.4), "error") == pytest.approx(0.3)
    assert settled(points(0.9, 0.5, 0.4, 0.2), "error") == pytest.approx(0.3)
    assert settled(points(0.9, 0.4, 0.2), "error") == 0.2
    assert settled(points(0.9, 0.5, 0.4, 0.3, 0.2, 0.4), "error", last=1) == 0.4
    assert settled(points(0.9), "loss") is None


def test_what_was_tried_and_chosen(tmp_path: Path) -> None:
    def trial(rate: float) -> dict[str, Any]:
        return plan_cell("bmuf", 4, 0, trial=True, rate=rate) | {"name": f"bmuf-4-trial-{rate:g}"}

    cells = [*map(trial, (0.1, 0.2, 0.4, 0.8)), plan_cell("bmuf", 4, 1, rate=None)]
    write_folder(tmp_path, cells)
    for cell, errors in zip(cells, ([0.6, 0.5], [0.5, 0.5, 0.3, 0.1], [0.5, 0.1, 0.1, 0.15], [0.2]), strict=False):
        fake_cell(tmp_path, cell, errors)
    spoilt = tmp_path / "runs" / "bmuf-4-trial-0.8" / "cell.json"
    spoilt.write_text(json.dumps(cells[3] | {"status": "diverged", "error": "the loss is nan", "scores": {}}))
    about = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(about | {"tuning": {"rates": [1, 2], "evaluations": 3}}))
    summary = summarise(tmp_path)
    (trials,) = summary["trials"]
    assert trials["scores"] == [0.5, pytest.approx(0.2), pytest.approx(0.125), None]
    assert (trials["statuses"][3], trials["chosen"], trials["at_edge"]) == ("diverged", 0.4, False)
    assert any("the mean of its last 3 evaluations" in note for note in summary["notes"])
    fake_cell(tmp_path, cells[4] | {"rate": 0.2}, [0.4, 0.1])
    assert summarise(tmp_path)["trials"][0]["chosen"] == 0.2  # as it was run
