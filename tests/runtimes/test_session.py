"""A session and its point-to-point operations over a transport in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import CommunicationError, LearnerLost, Mismatch
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.blocking import StrategyLock, run_blocking
from roundelay.runtimes.messages import Inbox, Kind, Label, Message
from roundelay.runtimes.session import PointToPoint, Session, serve_message
from roundelay.runtimes.wall_clock import WallClock
from roundelay.strategy import Strategy

T = TypeVar("T")


class Loopback:
    """A transport whose messages are put into its inbox by the test; it records what is sent."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.inbox, self.sent, self.released = Inbox(), list[tuple[int, Label, Tensor]](), list[int]()
        self.end_reason: str | None = None
        self.arrived: float | None = None
        self.wakes = 0

    def send(self, to: int, label: Label, x: Tensor) -> int:
        self.sent.append((to, label, x.clone()))
        return x.nbytes

    def arrive(self, source: int, label: Label, value: float) -> Message:
        message = Message(source, label, torch.tensor([value]), lambda: self.released.append(int(value)))
        self.inbox.put(message)
        return message

    def blank(self, like: Tensor) -> Tensor:
        return torch.empty_like(like)

    def receive(self, source: int, label: Label) -> Message | None:
        return self.inbox.take(source, label)

    def next_request(self) -> Message | None:
        return self.inbox.take_request()

    def wait(self, check: Callable[[], T | None], *, requests: bool = False) -> T:
        result = check()
        if result is None:
            raise LearnerLost(self.end_reason or "nothing has arrived")
        return result

    def wake(self) -> None:
        self.wakes += 1

    def abort(self, reason: str) -> None:
        self.end_reason = reason

    def close(self) -> None:
        self.end_reason = "closed"


class Group(PointToPoint):
    """Point-to-point operations alone."""

    def _make(self, members: Any, path: str) -> Communicator:
        return Group(self.session, members, path)  # type: ignore[return-value]  # it has no collectives


class Later(Strategy):
    """Replies when the test says so."""

    def __init__(self) -> None:
        self.reply = DeferredReply()

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> DeferredReply:
        return self.reply


@pytest.fixture
def transport() -> Loopback:
    return Loopback()


@pytest.fixture
def session(transport: Loopback) -> Session:
    lock = StrategyLock()
    lock.acquire()
    return Session(transport, lock, WallClock(Record(None, clock="wall"), 0, 2))


def awaited(operation: Awaitable[T]) -> T:
    async def work() -> T:
        return await operation

    return run_blocking(work())


def test_exchanges_are_matched_by_number_in_any_order_of_awaits(session: Session, transport: Loopback) -> None:
    group = Group(session, [0, 1])
    first, second = group.exchange(torch.zeros(3), 1, 1), group.exchange(torch.zeros(3), 1, 1)
    for number in (1, 2):
        transport.arrive(1, Label(Kind.EXCHANGE, group.key, number), 10.0 * number)
    assert [float(awaited(second)), float(awaited(first))] == [20.0, 10.0]
    assert [label.number for _, label, _ in transport.sent] == [1, 2]
    assert transport.released == []
    group.request(torch.zeros(1), 1)
    assert transport.released == [], "an operation of another kind"
    group.exchange(torch.zeros(3), 1, 1)
    assert sorted(transport.released) == [10, 20]


def test_results_of_a_dropped_group_are_released(session: Session, transport: Loopback) -> None:
    world = Group(session, [0, 1])
    group = Group(session, [0, 1], "world/1.0")
    transport.arrive(1, Label(Kind.EXCHANGE, group.key, 1), 7.0)
    awaited(group.exchange(torch.zeros(1), 1, 1))
    world.exchange(torch.zeros(1), 1, 1)
    assert transport.released == []
    del group
    world.exchange(torch.zeros(1), 1, 1)
    assert transport.released == [7]


def test_an_exchange_with_oneself_on_one_side_is_refused(session: Session) -> None:
    with pytest.raises(Mismatch, match="on one side only: to 0, from 1"):
        Group(session, [0, 1]).exchange(torch.zeros(1), 0, 1)


def test_a_split_without_us_is_refused(session: Session, transport: Loopback) -> None:
    group = Group(session, [0, 1])
    with pytest.raises(Mismatch, match=r"rank 0 is in none of the groups \[\[1\]\]"):
        group.split([[1]])
    assert transport.wakes == 0
    assert group.split([[1], [0]]).size == 1
    assert transport.wakes == 1, "a request in the new group may have come"


def test_a_request_to_oneself_before_the_strategy(session: Session) -> None:
    with pytest.raises(CommunicationError, match="before the strategy was set up"):
        Group(session, [0, 1]).request(torch.zeros(1), 0)


def test_a_deferred_reply_is_sent_when_it_is_given(session: Session, transport: Loopback) -> None:
    group, strategy = Group(session, [1, 0]), Later()
    session.learner, session.strategy = Learner(nn.Linear(1, 1)), strategy
    serve_message(session, transport.arrive(1, Label(Kind.REQUEST, group.key, 5), 3.0))
    assert transport.sent == []
    strategy.reply.send(torch.tensor([4.0]))
    assert [(to, label, float(x)) for to, label, x in transport.sent] == [(1, Label(Kind.REPLY, group.key, 5), 4.0)]
    late, session.strategy = Later(), Later()
    session.strategy = late
    serve_message(session, transport.arrive(1, Label(Kind.REQUEST, group.key, 6), 3.0))
    session.abort("learner 1 is lost")
    late.reply.send(torch.tensor([4.0]))
    assert len(transport.sent) == 1, "no reply after the generation has ended"


def test_the_first_reason_ends_a_session(session: Session, transport: Loopback) -> None:
    session.abort("first")
    session.abort("second")
    assert session.end_reason == transport.end_reason == "first"


def test_an_error_while_serving_is_raised_by_the_main_thread(session: Session) -> None:
    session.fail(ValueError("will not serve"))
    with pytest.raises(ValueError, match="will not serve"):
        session.wait(lambda: None)
    assert session.strategy_lock._lock.locked(), "waiting gives the lock back to its holder"
