"""One strategy for a cluster: fast enough there, and the lowest measured error among these."""

from __future__ import annotations

import pytest

from roundelay.errors import SettingsError
from roundelay.planning.ranking import PAPERS
from roundelay.planning.recommendation import FAST_ENOUGH, MEASURED, recommend
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink, Straggler

FAST = Cluster(name="fast", nodes=8, learners_per_node=1, model_bytes=1e6, compute=Compute(seconds=0.1))
SLOW = Cluster(
    name="slow", nodes=8, learners_per_node=1, model_bytes=2e8, compute=Compute(seconds=0.1),
    inter_node=NetworkLink(1e-4, 1e9),
)  # fmt: skip


def test_where_all_are_fast_the_error_decides() -> None:
    found = recommend(FAST, hours=10)
    assert found.strategy == "synchronous"
    assert found.command == "roundelay train EXPERIMENT --out RUN --learners 8 --strategy synchronous"
    assert found.choice.factor == 8
    assert found.steps == 10 * 360_000 * 10 // (256 * 8)


def test_a_slow_network_excludes_what_waits_for_it() -> None:
    found = recommend(SLOW, hours=10)
    speeds = {row.strategy: row.speedup for row in found.rows}
    assert speeds["synchronous"] < FAST_ENOUGH * max(speeds.values()) <= speeds[found.strategy]
    assert any(line.startswith("Slower here: ") and "synchronous" in line for line in found.reasons)


def test_a_straggler_excludes_barriers() -> None:
    slow = Cluster(
        nodes=8, learners_per_node=1, model_bytes=1e6, compute=Compute(seconds=0.1),
        stragglers=[Straggler(learner=3, factor=10.0)],
    )  # fmt: skip
    assert recommend(slow, hours=10).strategy in {"adpsgd", "adpsgd-random"}


def test_a_short_budget_gets_the_rules_short_block_and_its_hint() -> None:
    found = recommend(FAST, hours=0.1, epochs=1)
    assert "steps per learner are few" in found.choice.line
    assert found.plain()["rule"]["factor"] == found.choice.factor


def test_one_learner_and_sgd() -> None:
    assert recommend(FAST, hours=1, learners=1).choice.line == ""
    assert recommend(FAST, hours=1, optimizer="SGD").choice.factor == 8


def test_less_than_a_minibatch_each_is_an_error() -> None:
    with pytest.raises(SettingsError, match="less than one minibatch of 256 frames for each of 8 learners"):
        recommend(FAST, hours=0.001, epochs=1)


def test_only_strategies_of_the_papers_have_figures() -> None:
    assert MEASURED.keys() <= {*PAPERS}
