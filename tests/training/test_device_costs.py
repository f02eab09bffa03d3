"""What a step costs on an accelerator, counted on the stand-in: host syncs, bytes to the host, large allocations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Program = Callable[..., Any]
LOSS_BYTES = 4


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("synchronous", {}), ("synchronous", {"bucket_bytes": 4096}), ("bmuf", {"block": 3}), ("delay-by-one", {})],
)
def test_lockstep_strategies_leave_the_host_alone(strategy: str, more: dict[str, Any], stand_in: Program) -> None:
    for found in stand_in("counted", strategy, more, 2):
        assert found["steps"] > 20
        assert found["most"]["host_syncs"] <= 1, "the loss, for the record"
        assert found["most"]["to_host"] <= LOSS_BYTES
        assert found["most"]["large"] == 0, "a vector was allocated in a steady step"


def test_adpsgd_sends_one_vector_and_takes_the_answers(stand_in: Program) -> None:
    learners = stand_in("counted", "adpsgd", {}, 3)
    vectors = {
        name: sum(found["total"][name] for found in learners)
        / sum(found["steps"] * found["vector"] for found in learners)
        for name in ("to_host", "to_device")
    }
    # Each of three learners has two neighbours: its weights go out once for both, and it answers about two requests.
    assert vectors["to_host"] < 1 + 2 + 0.5
    assert vectors["to_device"] < 2 + 2 + 0.7


@pytest.mark.parametrize(("strategy", "more"), [("synchronous", {}), ("bmuf", {"block": 3}), ("adpsgd", {})])
def test_survivors_go_on_if_a_learner_is_killed(strategy: str, more: dict[str, Any], stand_in: Program) -> None:
    first, second, third = stand_in("killed", strategy, more, 3)
    assert second is None
    assert first["consensus"] == third["consensus"]
    for survivor in (first, third):
        assert len(survivor["gaps"]) == 1, "one regrouping, and no endless retry"
