"""The verdict on a claim, by checks that were written before the run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from roundelay.errors import SettingsError
from roundelay.study.claims import Check, PaperClaim, Quotient, Row, figure, judge
from roundelay.study.definition import Study
from study_files import write_study

CLAIMS = Path(__file__).parents[2] / "experiments" / "claims"
FAST, SLOW = Row("fast", 4), Row("slow", 4)


def cell(strategy: str, seed: int, loss: float | None, **more: Any) -> dict[str, Any]:
    """Say of a run what a summary does; without a loss it diverged."""
    status = "done" if loss is not None else "diverged"
    plain = {"strategy": strategy, "learners": 4, "model": "", "cluster": "", "seed": seed, "trial": False}
    return plain | {"status": status, "scores": {"loss": loss}, "seconds": 2.0, "wer": None} | more


def claim(*checks: Check) -> PaperClaim:
    return PaperClaim("A is better than B.", "a paper", "it is", "half as much", list(checks))


def test_the_median_of_the_quotients_counts_seed_by_seed() -> None:
    cells = [cell("fast", 1, 1.0), cell("fast", 2, 3.0), cell("fast", 3, 1.0)]
    cells += [cell("slow", 3, 2.0), cell("slow", 2, 2.0), cell("slow", 1, 4.0)]  # in another order
    verdict, (result,) = judge(claim(Check(FAST, SLOW, at_most=0.5)), cells)
    assert (verdict, result.median, result.low, result.high, result.passed) == ("holds", 0.5, 0.25, 1.5, True)


def test_all_some_or_none_of_the_checks() -> None:
    cells = [cell("fast", 1, 1.0), cell("slow", 1, 2.0), cell("slow", 1, 9.0, trial=True)]
    good, bad = Check(FAST, SLOW, at_most=0.5), Check(FAST, SLOW, at_least=0.6)
    assert [judge(claim(*checks), cells)[0] for checks in ([good], [good, bad], [bad, bad])] == [
        "holds", "in part", "does not hold here",
    ]  # fmt: skip


def test_a_missing_row_is_no_verdict() -> None:
    verdict, (result,) = judge(claim(Check(FAST, Row("gone", 4), at_most=1.0)), [cell("fast", 1, 1.0)])
    assert (verdict, result.passed) == ("not run yet", None)
    assert judge(claim(), [])[0] == "not run yet"


def test_how_much_more_something_matters() -> None:
    cells = [
        cell("fast", 1, 1.0),
        cell("slow", 1, 4.0),
        cell("fast", 1, 1.0, model="b"),
        cell("slow", 1, 2.0, model="b"),
    ]
    check = Check(FAST, SLOW, at_most=0.5, versus=Quotient(Row("fast", 4, "b"), Row("slow", 4, "b")))
    assert judge(claim(check), cells)[1][0].median == 0.5


def test_lost_runs_are_infinite_and_are_counted() -> None:
    cells = [cell("fast", 1, 1.0), cell("fast", 2, None), cell("slow", 1, None), cell("slow", 2, None)]
    lost, loss = Check(FAST, SLOW, "lost", at_most=-1), Check(FAST, SLOW, at_most=0.5)
    verdict, (counted, divided) = judge(claim(lost, loss), cells)
    assert (verdict, counted.median, divided.low, divided.high) == ("holds", -1.0, 0.0, 1.0)


@pytest.mark.parametrize("what", ["loss", "spread", "seconds"])
def test_two_lost_rows_show_nothing(what: str) -> None:
    cells = [cell("fast", 1, None), cell("slow", 1, None)]
    for check in (Check(FAST, SLOW, what, at_most=2.0), Check(FAST, SLOW, what, at_least=0.5)):
        verdict, (result,) = judge(claim(check), cells)
        assert (verdict, result.median, result.passed) == ("does not hold here", None, False)


def test_figures_of_a_run() -> None:
    one = cell("fast", 1, 0.5, wer={"wer": 4.5}, reached_seconds=None)
    assert [figure(one, what) for what in ("loss", "seconds", "wer", "reached")] == [0.5, 2.0, 4.5, math.inf]
    with pytest.raises(SettingsError, match="'accuracy' is not a score of the runs \\(loss\\)"):
        figure(one, "accuracy")


def test_a_check_needs_a_bound(tmp_path: Path) -> None:
    more = '[claim]\nsays = "a"\nsource = "b"\nhypothesis = "c"\nrule = "d"\n[[claim.checks]]\n'
    rows = 'of = { strategy = "bmuf", learners = 4 }\nthan = { strategy = "synchronous", learners = 1 }\n'
    with pytest.raises(SettingsError, match="a check needs at_most or at_least"):
        Study.read(write_study(tmp_path / "s.toml", more=more + rows))


@pytest.mark.parametrize("path", sorted(CLAIMS.glob("C[0-9][0-9].toml")), ids=lambda path: path.stem)
def test_the_claims_of_the_papers_have_rules_and_rows_that_exist(path: Path) -> None:
    if path.stem == "C22":
        return  # a program
    study = Study.read(path)
    assert study.claim is not None
    assert study.claim.hypothesis
    assert study.claim.rule
    labels = {each if isinstance(each, str) else each.get("label", each["name"]) for each in study.strategies}
    for check in study.claim.checks:
        rows = [check.of, check.than, *([check.versus.of, check.versus.than] if check.versus else [])]
        for row in rows:
            assert row.strategy in labels | {study.baseline}
            assert row.learners in {*study.learners, 1}
            assert row.model in (set(study.models) or {""})
            assert row.cluster in (set(study.clusters) or {""})


def test_all_claims_have_a_file() -> None:
    assert [path.stem for path in sorted(CLAIMS.glob("C*.toml"))] == [f"C{n:02d}" for n in range(1, 24)]
