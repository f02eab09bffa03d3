"""Separate runs are summarised as a study is, as far as they can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_files import write_run
from roundelay.report.report_writer import make_report_data
from roundelay.report.run_summary import run_names, summarise_runs
from roundelay.runs.history import read_details
from roundelay.runs.target import Target


def test_runs_with_equal_settings_are_seeds_of_one_row(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        run = write_run(tmp_path / f"seed-{seed}", "bmuf", 2)
        settings = (run / "settings.toml").read_text().replace("seed = 1", f"seed = {seed}")
        (run / "settings.toml").write_text(settings)
    (row,) = make_report_data([tmp_path]).rows
    assert row["seeds"] == [1, 2, 3]


def test_speed_up_is_over_one_learner(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "synchronous", 1)
    write_run(tmp_path / "four", "bmuf", 4, slow=3.0)
    rows = {row["learners"]: row for row in make_report_data([tmp_path]).rows}
    assert rows[1]["throughput_speedup"] == 1.0
    assert rows[4]["throughput_speedup"] == pytest.approx(4.0, rel=0.01)
    assert rows[4]["throughput_efficiency"] == pytest.approx(1.0, rel=0.01)


def test_names_are_as_long_as_needed() -> None:
    assert run_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert run_names([Path("/x/one/run"), Path("/x/two/run")]) == ["one/run", "two/run"]


def test_one_run_is_told_in_sentences(tmp_path: Path) -> None:
    details = read_details(write_run(tmp_path / "run", "bmuf", 2, steps=30))
    answer = summarise_runs({"run": details}, Target(score="error", value=0.05))["answer"]
    assert answer["headline"].startswith("bmuf with 2 learners: held-out loss 0.05, frame error 3")
    assert "of wall time" in answer["headline"]
    said = " ".join(answer["sentences"])
    assert "Gradients were 1 steps stale on average, 2 at most." in said
    assert "The target, error at most" in said
    assert "was reached after" in said
    missed = summarise_runs({"run": details}, Target(score="error", value=0.0))["answer"]
    assert "was not reached" in " ".join(missed["sentences"])


def test_runs_that_did_not_finish_are_counted(tmp_path: Path) -> None:
    whole, cut = (read_details(write_run(tmp_path / name, "bmuf", 2)) for name in ("whole", "cut"))
    (tmp_path / "cut" / "model.json").unlink()
    cut = read_details(tmp_path / "cut")
    summary = summarise_runs({"whole": whole, "cut": cut})
    assert {cell["name"]: cell["status"] for cell in summary["cells"]} == {"whole": "done", "cut": "interrupted"}
    assert [fault["cell"] for fault in summary["faults"]] == ["cut"]
    assert "1 run did not finish" in " ".join(summary["answer"]["sentences"])


def test_the_best_of_several_is_named_without_a_rank(tmp_path: Path) -> None:
    runs = {name: read_details(write_run(tmp_path / name, name, 2)) for name in ("bmuf", "adpsgd")}
    summary = summarise_runs(runs)
    assert "ended best" in summary["answer"]["headline"]
    assert summary["answer"]["winner"] is None
    assert "There is one run of each, so every difference may be chance." in summary["answer"]["sentences"]
