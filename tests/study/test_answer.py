"""The answer in sentences."""

from __future__ import annotations

from pathlib import Path

from roundelay.study.summary import summarise
from study_files import fake_cell, made_up, plan_cell, write_folder


def test_the_answer_in_words(tmp_path: Path) -> None:
    made_up(tmp_path)
    answer = summarise(tmp_path)["answer"]
    assert answer["headline"] == (
        "4 learners in the simulator: fast reaches error 20.0 % first, in 1.02 s of virtual time, "
        "2.00 times as fast as the next, slow, and 4 times as fast as one learner."
    )
    assert answer["certainty"] == "clear"
    said = " ".join(answer["sentences"])
    assert "over 3 seeds the ranges of the two do not overlap" in said
    assert "not ranked: odd." in said
    assert "Missed error 20.0 %: missed (0 of 3 seeds)." in said
    changes = " ".join(answer["changes"])
    assert "With a harder target, error 14" in changes
    assert "slow is first" in changes
    assert "By the error at the end of the budget slow is first (5.0 % against 15.0 %)." in changes


def test_nobody_reached_the_target(tmp_path: Path) -> None:
    cells = [plan_cell("synchronous", 1, 1), plan_cell("bmuf", 2, 1)]
    write_folder(tmp_path, cells, target=0.01)
    for cell in cells:
        fake_cell(tmp_path, cell, [0.5, 0.3])
    answer = summarise(tmp_path)["answer"]
    assert "no ranked strategy reached error 1.0 %" in answer["headline"]
    assert "the nearest is bmuf with 30.0 %" in answer["headline"]
    assert answer["winner"] is None
