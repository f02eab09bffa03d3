"""The data of a report: clocks, panels, labels and conditions."""

from __future__ import annotations

import json
from pathlib import Path

from report_files import write_run, write_study
from roundelay.report.report_writer import make_report_data


def test_one_learner_is_drawn_in_every_panel(tmp_path: Path) -> None:
    board = make_report_data([write_study(tmp_path / "study")])
    panels = [(facet, label) for _, facet, label, _ in board.panels()]
    assert panels == [
        ("1 learner", "synchronous"), ("1 learner", "bmuf"),
        ("4 learners", "one learner"), ("4 learners", "synchronous"), ("4 learners", "bmuf"),
    ]  # fmt: skip


def test_places_are_in_the_order_of_the_study(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study")
    about = json.loads((study / "study.json").read_text())
    for cell in about["cells"]:  # what comes first in the study comes last in the alphabet
        cell["cluster"] = "zero" if cell["seed"] == 1 else "ten"
        outcome = json.loads((study / "runs" / cell["name"] / "cell.json").read_text())
        (study / "runs" / cell["name"] / "cell.json").write_text(json.dumps(outcome | cell))
    (study / "study.json").write_text(json.dumps(about))
    board = make_report_data([study])
    assert board.all_conditions == ["zero", "ten"]
    facets = list(dict.fromkeys(facet for _, facet, _, _ in board.panels()))
    assert facets == ["1 learner, zero", "4 learners, zero", "1 learner, ten", "4 learners, ten"]


def test_only_what_varies_is_a_condition(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "bmuf", 2, clock="virtual")
    alike = make_report_data([tmp_path])
    assert [alike.facet(row) for row in alike.rows] == ["2 learners"]
    write_run(tmp_path / "b", "bmuf", 2, clock="virtual", slow=3.0)
    varied = make_report_data([tmp_path])
    assert sorted(varied.facet(row) for row in varied.rows) == [
        "2 learners, a switch", "2 learners, a switch, straggler ×3",
    ]  # fmt: skip


def test_rows_that_look_alike_are_told_apart_by_a_run(tmp_path: Path) -> None:
    for name, rate in (("a", "0.1"), ("b", "0.2")):
        run = write_run(tmp_path / name, "bmuf", 2)
        (run / "settings.toml").write_text((run / "settings.toml").read_text().replace("lr = 0.1", f"lr = {rate}"))
    data = make_report_data([tmp_path])
    assert sorted(data.label(row) for row in data.rows) == ["bmuf (a)", "bmuf (b)"]


def test_clocks_strategies_and_counts_that_occur(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "bmuf", 2, clock="wall")
    write_run(tmp_path / "b", "adpsgd", 4, clock="virtual")
    data = make_report_data([tmp_path])
    assert (data.clocks, data.strategies, data.counts) == (["virtual", "wall"], ["adpsgd", "bmuf"], [2, 4])


def test_problems_of_a_runs_files_are_told_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "bmuf", 2)
    (run / "settings.toml").write_text("no = = toml")
    data = make_report_data([tmp_path])
    (problem,) = data.problems(data.cells["run"])
    assert "settings.toml cannot be read" in problem
