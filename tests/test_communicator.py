"""Replies that are sent later, and JSON among ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.communicator import DeferredReply, gather_json
from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, simulate


@pytest.mark.parametrize("early", [True, False])
def test_a_reply_is_sent_once_whichever_comes_first(*, early: bool) -> None:
    reply, sent = DeferredReply(), list[Tensor]()
    x = torch.ones(3)
    if early:
        reply.send(x)
        assert sent == []
        reply.on_send(sent.append)
    else:
        reply.on_send(sent.append)
        assert sent == []
        reply.send(x)
    assert len(sent) == 1
    assert sent[0] is x


class Gathering:
    """Learners that tell each other something in JSON, of different lengths."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.learner, self.runtime = Learner(torch.nn.Linear(1, 1)), runtime
        self.told: list[Any] = []

    async def run(self) -> Tensor:
        await self.runtime.rendezvous(self.learner, {}, lambda reports, safe: {})
        comm = self.learner.comm
        self.told = await gather_json(comm, {"rank": comm.rank, "text": "é" * comm.rank})
        return self.learner.weights


def test_json_of_all_ranks_comes_in_rank_order() -> None:
    outcome = simulate(Gathering, Cluster(), learners=3)
    for each in outcome.trainings:
        assert each.told == [{"rank": rank, "text": "é" * rank} for rank in range(3)]
