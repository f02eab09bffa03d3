"""Operations of simulated ranks: what they give, what they cost, and what is named when ranks disagree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roundelay.errors import Deadlock, Mismatch
from roundelay.runtimes.cluster import Cluster, NetworkLink
from simulated_ranks import SimulatedRank, on_ranks

LINK = Cluster(intra_node=NetworkLink(0.0, 1e6))


def test_collectives_by_hand() -> None:
    async def work(rank: SimulatedRank) -> dict[str, Any]:
        await rank.meet()
        comm, mine = rank.learner.comm, float(rank.learner.comm.rank)
        return {
            "mean": (await comm.mean(torch.full((2,), mine), weight=mine)).tolist(),
            "none": (await comm.mean(torch.full((1,), mine), weight=0.0)).tolist(),
            "gather": [x.numel() for x in await comm.gather(torch.zeros(int(mine)))],
            "broadcast": (await comm.broadcast(torch.full((1,), mine), root=2)).tolist(),
            "exchange": (
                await comm.exchange(torch.full((1,), mine), (comm.rank + 1) % 3, (comm.rank - 1) % 3)
            ).tolist(),
        }

    found, _ = on_ranks(work, 3)
    for rank, each in enumerate(found):
        assert each["mean"] == pytest.approx([5 / 3] * 2)  # (0 * 0 + 1 * 1 + 2 * 2) / 3
        assert each["none"] == [rank], "unchanged where all weights are 0"
        assert each["gather"] == [0, 1, 2]
        assert each["broadcast"] == [2.0]
        assert each["exchange"] == [(rank - 1) % 3]


def test_groups_communicate_among_themselves() -> None:
    async def work(rank: SimulatedRank) -> tuple[int, int, float]:
        await rank.meet()
        group = rank.learner.comm.split([[0, 2], [3, 1]])
        return group.rank, group.size, float(await group.mean(torch.tensor([float(rank.learner.comm.rank)])))

    found, _ = on_ranks(work, 4)
    assert found == [(0, 2, 1.0), (1, 2, 2.0), (1, 2, 1.0), (0, 2, 2.0)]


def test_what_is_sent_may_change_right_after_the_call() -> None:
    async def work(rank: SimulatedRank) -> float:
        await rank.meet()
        x, comm = torch.tensor([float(rank.learner.comm.rank)]), rank.learner.comm
        coming = comm.exchange(x, to=1 - comm.rank, source=1 - comm.rank)
        x.fill_(99.0)
        return float(await coming)

    assert on_ranks(work, 2)[0] == [1.0, 0.0]


def test_an_exchange_takes_its_bytes_over_the_link() -> None:
    async def work(rank: SimulatedRank) -> None:
        await rank.meet()
        comm = rank.learner.comm
        await comm.exchange(torch.zeros(250_000), to=1 - comm.rank, source=1 - comm.rank)

    assert on_ranks(work, 2, LINK)[1] == pytest.approx(1.0, rel=0.01)  # a megabyte


def test_ranks_that_call_different_operations_are_told() -> None:
    async def work(rank: SimulatedRank) -> None:
        await rank.meet()
        comm = rank.learner.comm
        await (comm.mean(torch.zeros(2)) if comm.rank else comm.gather(torch.zeros(2)))

    with pytest.raises(Mismatch, match="gather.*mean|mean.*gather"):
        on_ranks(work, 2)


def test_a_rank_that_waits_for_ever_is_named() -> None:
    async def work(rank: SimulatedRank) -> None:
        await rank.meet()
        if rank.learner.comm.rank == 1:
            await rank.learner.comm.exchange(torch.zeros(2), to=0, source=0)

    with pytest.raises(Deadlock, match="learner 1"):
        on_ranks(work, 2)
