"""Which minibatches are safe: another learner has finished a step with a message that was sent after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.strategy import Strategy
from roundelay.training.minibatch_tracker import MinibatchTracker


class Told:
    """The part of a runtime that a tracker uses."""

    def __init__(self, *, elastic: bool = True) -> None:
        self.elastic = elastic
        self.safe: list[int] = []

    def mark_safe(self, numbers: Sequence[int]) -> None:
        self.safe += numbers


class Echo:
    """A communicator of ``size`` ranks whose operations return at once."""

    rank = 0

    def __init__(self, size: int = 3) -> None:
        self.size = size

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        return self._done(x)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        return self._done([x])  # type: ignore[arg-type, return-value]  # as it is

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        return self._done(x)

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        return self._done(x)

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        return self._done(x)

    def blank(self, like: Tensor) -> Tensor:
        return torch.empty_like(like)

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        return Echo(len(groups[0]))

    async def _done(self, x: Tensor) -> Tensor:
        return x


def make(*, elastic: bool = True, size: int = 3) -> tuple[MinibatchTracker, Told, Communicator]:
    told: Any = Told(elastic=elastic)
    tracker = MinibatchTracker(told)
    return tracker, told, tracker.watch(Echo(size))


def step(tracker: MinibatchTracker, number: int, *operations: Awaitable[Any]) -> None:
    """Take a step that awaits ``operations``, which were started before."""

    async def everything() -> None:
        for operation in operations:
            await operation

    asyncio.run(everything())
    tracker.close()
    tracker.finished(number)


def test_a_collective_makes_the_steps_before_it_safe() -> None:
    tracker, told, world = make()
    for number in (7, 8, 9):
        tracker.open()
        step(tracker, number, world.mean(torch.zeros(1)))
    assert told.safe == [7, 8]  # the mean of step 9 carried what was finished before it
    assert tracker.unsafe == [9]


def test_operations_outside_of_steps_make_nothing_safe() -> None:
    tracker, told, world = make()
    tracker.finished(1)
    asyncio.run(_await(world.mean(torch.zeros(1))))
    tracker.close()
    assert told.safe == []
    assert tracker.unsafe == [1]


def test_an_exchange_is_safe_once_the_peer_is_heard_again() -> None:
    tracker, told, world = make()
    for number in range(4):
        tracker.open()
        step(tracker, number, world.exchange(torch.zeros(1), to=1, source=1))
        assert told.safe == list(range(number - 1))


def test_an_exchange_along_a_ring_is_safe_after_a_round() -> None:
    tracker, told, world = make()
    for number in range(6):
        tracker.open()
        step(tracker, number, world.exchange(torch.zeros(1), to=1, source=2))
    assert told.safe == [0, 1]  # sent in step 2, and then heard of others in 3 more steps


@pytest.mark.parametrize(("kept", "safe"), [(True, [0]), (False, [])])
def test_a_request_is_safe_if_the_server_keeps_it(kept: bool, safe: list[int]) -> None:
    tracker, told, world = make()
    tracker.requests_are_kept = kept
    for number in (0, 1):
        tracker.open()
        step(tracker, number, world.request(torch.zeros(1), to=1))
    assert told.safe == safe


def test_a_reply_is_safe_once_the_requester_asks_again() -> None:
    class Serving(Strategy):
        def serve(self, learner: Any, theirs: Tensor, source: int) -> Tensor:
            return theirs

    tracker, told, _ = make()
    served, nobody = tracker.serving(Serving()), Any
    tracker.finished(5)
    served.serve(nobody, torch.zeros(1), 2)  # type: ignore[arg-type]  # the learner is not used
    served.serve(nobody, torch.zeros(1), 1)  # type: ignore[arg-type]
    tracker.close()
    assert told.safe == []
    served.serve(nobody, torch.zeros(1), 2)  # type: ignore[arg-type]
    tracker.close()
    assert told.safe == [5]


def test_a_merge_makes_all_safe_and_an_interval_carries_over_what_is_not() -> None:
    tracker, _, world = make()
    for number in (1, 2, 3):
        tracker.open()
        step(tracker, number, world.mean(torch.zeros(1)))
    tracker.begin(keep=True)
    assert tracker.trained == tracker.unsafe == [3]
    tracker.begin()
    assert tracker.trained == []
    tracker.restore([4, 5])
    assert tracker.unsafe == [4, 5]


def test_an_aborted_step_makes_nothing_safe() -> None:
    tracker, told, world = make()
    tracker.finished(1)
    tracker.open()
    tracker.abort()
    asyncio.run(_await(world.mean(torch.zeros(1))))
    tracker.open()
    tracker.close()
    assert told.safe == []


def test_nothing_is_tracked_if_no_learner_can_be_lost() -> None:
    tracker, _, world = make(elastic=False)
    assert isinstance(world, Echo)
    strategy = Strategy()
    assert tracker.serving(strategy) is strategy
    _, _, alone = make(size=1)
    assert isinstance(alone, Echo)


def test_groups_of_one_are_not_tracked() -> None:
    _, _, world = make()
    assert isinstance(world.split([[0]]), Echo)
    assert not isinstance(world.split([[0, 1]]), Echo)


async def _await(operation: Awaitable[Any]) -> None:
    await operation
