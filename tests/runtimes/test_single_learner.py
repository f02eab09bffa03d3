"""A learner alone: operations end at once, and its own requests are served."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from roundelay.communicator import DeferredReply
from roundelay.errors import CommunicationError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategy import Strategy


class Doubling(Strategy):
    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        return theirs.mul_(2.0)


class Waiting(Strategy):
    def serve(self, learner: Learner, theirs: Tensor, source: int) -> DeferredReply:
        return DeferredReply()


@pytest.fixture
def runtime() -> LocalRuntime:
    return LocalRuntime()


@pytest.fixture
def learner(runtime: LocalRuntime) -> Learner:
    learner = Learner(nn.Linear(2, 1))

    async def meet() -> None:
        membership = await runtime.rendezvous(learner, {"mine": 1}, lambda reports, safe: {"all": list(reports)})
        assert (membership.rank, membership.size, membership.plan) == (0, 1, {"all": [{"mine": 1}]})

    runtime.run(meet())
    return learner


def test_operations_give_back_what_they_are_given(runtime: LocalRuntime, learner: Learner) -> None:
    x, comm = torch.tensor([1.0, 2.0]), learner.comm
    assert (comm.rank, comm.size, comm.split([[0]]).size) == (0, 1, 1)

    async def all_of_them() -> None:
        assert await comm.mean(x, 0.0) is x
        assert await comm.broadcast(x, root=0) is x
        (gathered,) = await comm.gather(x)
        exchanged = await comm.exchange(x, to=0, source=0)
        for other in (gathered, exchanged):
            assert other is not x, "results share no memory with what is given"
            assert torch.equal(other, x)

    runtime.run(all_of_them())


def test_requests_are_served_by_the_strategy(runtime: LocalRuntime, learner: Learner) -> None:
    x = torch.ones(2)
    runtime.start_serving(learner, Doubling())

    async def ask() -> Tensor:
        return await learner.comm.request(x, to=0)

    assert runtime.run(ask()).tolist() == [2.0, 2.0]
    assert x.tolist() == [1.0, 1.0], "a copy was served"
    runtime.start_serving(learner, Waiting())
    with pytest.raises(CommunicationError, match="Waiting lets its only learner wait for itself"):
        runtime.run(ask())


def test_counters_are_by_key(runtime: LocalRuntime) -> None:
    async def count() -> list[int]:
        return [await runtime.fetch_add(key, amount) for key, amount in (("a", 3), ("a", 1), ("b", 2), ("a", 0))]

    assert runtime.run(count()) == [0, 3, 0, 4]


class Work:
    """A gradient in two buckets."""

    def __init__(self) -> None:
        self.parts: Sequence[slice] = [slice(2, 3), slice(0, 2)]
        self.seen: list[str] = []

    def run(self, ready: object) -> None:
        assert ready is None
        self.seen.append("run")

    def ready(self, part: slice) -> None:
        self.seen.append(f"{part.start}")


def test_buckets_are_told_after_the_gradient_and_the_time_is_recorded(learner: Learner) -> None:
    text, work = io.StringIO(), Work()
    runtime = LocalRuntime(Record(text, clock="wall"))
    learner.frames = 8
    runtime.run(runtime.compute(learner, work))
    assert work.seen == ["run", "2", "0"]
    (line,) = map(json.loads, text.getvalue().splitlines())
    assert (line["event"], line["frames"]) == ("compute", 8)


def test_nobody_else_is_there(runtime: LocalRuntime) -> None:
    assert not runtime.has_newcomers()
    assert not runtime.elastic
    assert (runtime.initial_rank, runtime.initial_size) == (0, 1)
