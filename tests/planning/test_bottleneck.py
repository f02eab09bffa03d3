"""Which resource is busy for most of the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roundelay.planning.bottleneck import bottlenecks


def snapshot(time: float, inter_node: list[tuple[float, float]], intra_node: list[tuple[float, float]]) -> Any:
    return SimpleNamespace(time=time, totals={}, links={"inter_node": inter_node, "intra_node": intra_node})


def learner(compute: float, count: float = 10.0, wait: float = 0.0) -> dict[str, float]:
    return {"compute": compute, "compute count": count, "wait": wait}


IDLE = [(0.0, 0.0)] * 2


def test_computing() -> None:
    busy = bottlenecks({"learner 0": learner(9.0), "learner 1": learner(9.0)}, snapshot(0, IDLE, IDLE),
                       snapshot(10, IDLE, [(1.0, 0.0), (2.0, 0.0)]))  # fmt: skip
    assert busy == {"computing": 0.9, "the links inside a node": 0.2}


def test_a_slow_learner_is_named() -> None:
    spent = {"learner 0": learner(3.0), "learner 1": learner(3.0), "learner 2": learner(9.0)}
    busy = bottlenecks(spent, snapshot(0, IDLE, IDLE), snapshot(10, IDLE, IDLE))
    assert busy["the slowest learner"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("together", "name"), [(True, "the slowest learner at each step"), (False, "latency of messages")]
)
def test_waiting_has_another_reason_if_learners_step_together(*, together: bool, name: str) -> None:
    spent = {"learner 0": learner(3.0, wait=7.0), "learner 1": learner(3.0, wait=7.0)}
    busy = bottlenecks(spent, snapshot(0, IDLE, IDLE), snapshot(10, IDLE, IDLE), together=together)
    assert max(busy, key=lambda each: busy[each]) == name


def test_the_link_of_a_server_and_its_work() -> None:
    spent = {"learner 0": learner(3.0), "server 0": {"serve": 6.0}}
    end = snapshot(10, IDLE, [(8.0, 0.0), (2.0, 0.0)])
    busy = bottlenecks(spent, snapshot(0, IDLE, IDLE), end, servers=1)
    assert busy == {
        "computing": 0.3, "the server's link": 0.8, "the links inside a node": 0.2, "the server's own work": 0.6,
    }  # fmt: skip


def test_latency_is_named_if_it_is_most_of_a_links_time() -> None:
    end = snapshot(10, [(8.0, 5.0), (1.0, 0.0)], IDLE)
    busy = bottlenecks({"learner 0": learner(3.0)}, snapshot(0, IDLE, IDLE), end)
    assert busy["latency of the all-reduce"] == pytest.approx(0.8)
