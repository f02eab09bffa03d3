"""The parts that results of a study have in common."""

from __future__ import annotations

from typing import Any, cast

from roundelay.study.schema import CellResult, list_faults, no_answer, variant_of


def cell(**changes: Any) -> CellResult:
    described = {"name": "bmuf-4-seed-1", "strategy": "bmuf", "learners": 4, "seed": 1, "status": "done", "error": ""}
    return cast("CellResult", described | changes)


def test_seeds_of_a_strategy_are_one_variant() -> None:
    one, other = variant_of(cell(rate=0.1)), variant_of(cell(rate=0.1, seed=2, status="failed"))
    assert one == other
    assert (one["strategy"], one["learners"], one["rate"], one["period"]) == ("bmuf", 4, 0.1, None)
    assert variant_of(cell(rate=0.2)) != one


def test_faults_are_all_runs_that_are_not_done() -> None:
    bad = cell(name="easgd-4-seed-1", status="diverged", error="the loss is not finite")
    assert list_faults([cell(), bad]) == [
        {"cell": "easgd-4-seed-1", "status": "diverged", "error": "the loss is not finite"}
    ]


def test_an_answer_without_a_winner_can_be_extended() -> None:
    first, second = no_answer("Nothing yet."), no_answer("Nothing yet.", ["One."], ["Two."])
    first["sentences"].append("More.")
    assert (second["sentences"], second["changes"]) == (["One."], ["Two."])
    assert (first["winner"], first["certainty"]) == (None, "none")
