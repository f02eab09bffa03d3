"""A plan for a described cluster: the library's entrance to planning."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundelay.errors import SettingsError
from roundelay.planning.cluster_plan import num_learners, plan
from roundelay.runtimes.cluster import Cluster, Compute

CLUSTER = Cluster(nodes=2, learners_per_node=2, model_bytes=1e7, compute=Compute(seconds=0.1, jitter=0.0))


def test_a_cluster_has_room_for_so_many() -> None:
    assert num_learners(Cluster(nodes=3)) == 3
    assert num_learners(CLUSTER) == 4
    assert num_learners(Cluster(nodes=2, learners_per_node=[3, 1])) == 4


def test_one_ranking_for_each_number_of_learners() -> None:
    found = plan(CLUSTER, learners=[2, 4], strategies=["synchronous", "averaging"])
    assert [ranking.learners for ranking in found.rankings] == [2, 4]
    assert [sorted(ranking.order) for ranking in found.rankings] == [["averaging", "synchronous"]] * 2
    assert (found.effects, found.target, found.needed) == ((), None, None)
    (whole,) = plan(CLUSTER, strategies=["synchronous"]).rankings
    assert whole.learners == 4


def test_hyperparameters_are_set() -> None:
    rarely, often = (
        plan(CLUSTER, strategies=["averaging"], settings={"averaging.period": period}).rankings[0].rows[0].speedup
        for period in (100, 1)
    )
    assert rarely > often


def test_assumptions_are_varied_and_progress_is_told() -> None:
    told: list[tuple[str, int]] = []
    found = plan(CLUSTER, strategies=["synchronous"], factors=[0.5], progress=lambda *what: told.append(what))
    assert found.effects
    assert {total for _, total in told} == {len(told)}


def test_a_cluster_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("nodes = 3\nmodel_bytes = 1e7\n")
    assert plan(path, strategies=["synchronous"]).rankings[0].learners == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"learners": [0]}, "--learners must be from 1 to 10000, not 0"),
        ({"target": "loss=1"}, "--target needs --record"),
        ({"settings": {"bmuf.block": 3}}, "--set bmuf.block: 'bmuf' is not planned; there are synchronous"),
        ({"strategies": ["synchronus"]}, "did you mean 'synchronous'"),
    ],
)
def test_what_cannot_be_planned(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plan(CLUSTER, **{"strategies": ["synchronous"], **wrong})  # type: ignore[arg-type]  # wrong on purpose
