"""Plans printed and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roundelay.cli.screen.plan_output import plain, planning_bar, show
from roundelay.planning.cluster_plan import ClusterPlan, plan
from roundelay.planning.frames_to_target import Needed
from roundelay.runs.target import Target
from roundelay.runtimes.cluster import Cluster, Compute

CLUSTER = Cluster(
    copy_bandwidth=1e10, name="two nodes", source="a data sheet", nodes=2, learners_per_node=2, model_bytes=1e7,
    compute=Compute(seconds=0.1, jitter=0.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def made() -> ClusterPlan:
    return plan(CLUSTER, strategies=["synchronous", "averaging"], factors=[2.0])


def test_a_plan_is_plain_json(made: ClusterPlan) -> None:
    whole = json.loads(json.dumps(plain(made), allow_nan=False))
    assert whole["cluster"]["name"] == "two nodes"
    assert [row["strategy"] for row in whole["plans"][0]["strategies"]] == made.rankings[0].order
    assert whole["plans"][0]["learners"] == 4
    assert {each["assumption"] for each in whole["sensitivity"]} <= {
        each["assumption"] for each in whole["assumptions"]
    }
    assert whole["answer"]


def test_what_is_printed_says_what_it_rests_on(made: ClusterPlan, capsys: pytest.CaptureFixture[str]) -> None:
    show(made, hours=None)
    said = capsys.readouterr().out
    for words in ("two nodes, 4 learners", "synchronous", "averaging", "from: a data sheet", "Assumptions", "x 2"):
        assert words in said, words
    assert " epoch " not in said
    show(made, hours=100.0)
    assert " epoch " in capsys.readouterr().out


def test_frames_of_a_record_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    (ranking,) = plan(CLUSTER, strategies=["synchronous"]).rankings
    needed = {"synchronous": Needed(2000.0, 3, 1, (8,)), "bmuf": Needed(None, 1, 1, (4,))}
    show(ClusterPlan((ranking,), target=Target(score="loss", value=1.2), needed=needed), hours=None)
    said = " ".join(capsys.readouterr().out.split())  # it is wrapped to the terminal's width
    assert "Target: loss at most 1.2" in said
    assert "synchronous: 2,000 frames (median of 3 runs, 1 missed); recorded with 8 learners" in said
    assert "bmuf: not reached (median of 1 run, 1 missed)" in said
    assert "use --sensitivity" in said


def test_the_bar_counts_what_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planning_bar() as progress:
        plan(CLUSTER, strategies=["synchronous"], progress=progress)
    assert capsys.readouterr().out == ""
