"""Assumptions of a plan: named, written with units, and changed one at a time."""

from __future__ import annotations

import dataclasses
import math

import pytest

from roundelay.planning.assumptions import ASSUMPTIONS, assumptions_of, say_bytes, say_seconds
from roundelay.runtimes.cluster import Cluster, Compute, Straggler

FULL = Cluster(
    nodes=2,
    learners_per_node=2,
    model_bytes=1e6,
    compute=Compute(seconds=0.1, jitter=0.2),
    copy_bandwidth=1e9,
    stragglers=[Straggler(0, factor=3.0)],
)


@pytest.mark.parametrize("assumption", ASSUMPTIONS, ids=lambda each: each.name)
def test_each_changes_its_own_number(assumption: object) -> None:
    each = next(a for a in ASSUMPTIONS if a is assumption)
    before = each.value(FULL)
    if before is None:  # has no effect here
        assert each not in assumptions_of(FULL)
        return
    changed = each.change(FULL, 2.0)
    assert each.value(changed) == pytest.approx(2.0 * before)
    for other in assumptions_of(FULL):
        if other is not each:
            assert other.value(changed) == other.value(FULL)
    assert each.say(before)


def test_one_node_has_no_links_between_nodes() -> None:
    single = dataclasses.replace(FULL, nodes=1, stragglers=[], copy_bandwidth=math.inf)
    names = {each.name for each in assumptions_of(single)}
    assert not {name for name in names if "between" in name or name in ("slowest learner", "copying for an operation")}
    assert "bandwidth inside a node" in names


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-7, "0.2 us"), (0.0015, "1.5 ms"), (90.0, "90 s"), (120.0, "2 min"), (7200.0, "2 h")],
)
def test_seconds_have_a_suitable_unit(seconds: float, text: str) -> None:
    assert say_seconds(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(12.0, "12 B/s"), (1.5e3, "1.5 kB/s"), (2e9, "2 GB/s"), (3e12, "3 TB/s")])
def test_bytes_have_a_suitable_unit(count: float, text: str) -> None:
    assert say_bytes(count, "/s") == text
