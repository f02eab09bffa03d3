"""Ranks that are killed, stopped and started again in virtual time, and who is a member afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from roundelay.errors import LearnerLost, RoundelayError
from roundelay.runtimes.cluster import Cluster, Fault, Stop
from simulated_ranks import SimulatedRank, on_ranks


async def until_lost(rank: SimulatedRank, rounds: int = 50) -> str:
    """Exchange with both neighbours until another rank is lost; return the reason, or nothing."""
    try:
        for _ in range(rounds):
            await rank.learner.comm.exchange(
                torch.zeros(1000), (rank.learner.comm.rank + 1) % rank.learner.comm.size,
                (rank.learner.comm.rank - 1) % rank.learner.comm.size,
            )  # fmt: skip
    except LearnerLost as lost:
        return str(lost)
    return ""


def test_the_others_continue_without_a_killed_one() -> None:
    async def work(rank: SimulatedRank) -> dict[str, Any]:
        first = await rank.meet({"name": rank.runtime.initial_rank})
        rank.runtime.mark_safe([10 * rank.runtime.initial_rank])
        reason = await until_lost(rank, 100_000)
        second = await rank.meet({"name": rank.runtime.initial_rank})
        return {"first": first, "second": second, "reason": reason}

    found, _ = on_ranks(work, 3, Cluster(faults=[Fault(1, 0.01)], detection_seconds=0.005))
    assert len(found) == 2
    for rank, each in enumerate(found):
        assert (each["first"].size, each["first"].generation) == (3, 0)
        assert (each["second"].size, each["second"].rank, each["second"].generation) == (2, rank, 1)
        assert [report["name"] for report in each["second"].plan["reports"]] == [0, 2]
        assert each["second"].plan["safe"] == [10], "of the one that is lost"
        assert each["reason"]


class NoWork:
    """A gradient that takes its time and nothing else."""

    parts: Sequence[slice] = ()

    def run(self, ready: object) -> None:
        """Compute nothing."""

    def ready(self, part: slice) -> None:
        """Never called: there are no parts."""


def test_a_killed_one_that_is_started_again_is_let_in() -> None:
    async def work(rank: SimulatedRank) -> list[tuple[int, int]]:
        memberships = [await rank.meet()]
        rank.learner.frames = 1  # a gradient of no frames takes no time
        while memberships[-1].size == 2 and memberships[-1].generation < 2:
            await until_lost(rank, 100_000)
            memberships.append(await rank.meet())
            while memberships[-1].size == 1 and not rank.runtime.has_newcomers():
                await rank.runtime.compute(rank.learner, NoWork())
            if memberships[-1].size == 1:
                memberships.append(await rank.meet())
        return [(each.generation, each.size) for each in memberships]

    found, _ = on_ranks(work, 2, Cluster(faults=[Fault(1, 0.005, 0.01)], detection_seconds=0.001))
    assert found == [[(0, 2), (1, 1), (2, 2)], [(2, 2)]]


def test_who_is_silent_for_too_long_is_left_out() -> None:
    async def work(rank: SimulatedRank) -> str:
        await rank.meet()
        return await until_lost(rank, 1000)

    silent = Cluster(stops=[Stop(1, 0.001, 100.0)], heartbeat_timeout=1.0)
    found, seconds = on_ranks(work, 2, silent)
    assert "learner 1" in found[0]
    assert seconds >= 1.0
    patient = Cluster(stops=[Stop(1, 0.001, 0.5)], heartbeat_timeout=1.0)
    assert on_ranks(work, 2, patient)[0] == ["", ""], "a short stop is waited for"


def test_all_lost_is_an_error() -> None:
    async def work(rank: SimulatedRank) -> str:
        await rank.meet()
        return await until_lost(rank, 100_000)

    with pytest.raises(RoundelayError, match="lost"):
        on_ranks(work, 2, Cluster(faults=[Fault(0, 0.01), Fault(1, 0.01)], detection_seconds=0.001))
