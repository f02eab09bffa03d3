"""The contract on an accelerator, the stand-in of `stand_in_device.cpp`: the same bits as on the CPU, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roundelay.strategies import STRATEGIES
from strategy_cases import CASES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Program = Callable[..., Any]
SOME = [*STRATEGIES, "nodes by bmuf", "asgd with shards and a barrier", "synchronous in parts"]


def test_simulated_learners_come_to_the_same_bits(stand_in: Program) -> None:
    cases = list(CASES)
    assert stand_in("simulate", "stand_in", 4, cases) == stand_in("simulate", "cpu", 4, cases)


@pytest.mark.parametrize("learners", [2, 4])
def test_processes_come_to_the_same_bits(learners: int, stand_in: Program) -> None:
    for case, found in stand_in("on_processes", "stand_in", learners, SOME).items():
        assert found["consensus"] == [found["replayed"]], case
        assert found["simulated"] in (None, found["replayed"]), case
        numbers = [number % 4 for number in range(len(found["devices"]))]
        assert found["devices"] == [f"stand_in:{number}" for number in numbers], case
        assert found["touched"] == [1 << number for number in numbers], f"{case}: a thread used another device"
