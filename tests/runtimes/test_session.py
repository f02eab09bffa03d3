"""A session and its point-to-point operations over a transport in this process, and the choice of a transport."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import CommunicationError, LearnerLost, Mismatch, SettingsError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.awaitables import run_blocking
from roundelay.runtimes.messages import Inbox, Kind, Label, Message
from roundelay.runtimes.processes.membership import GenerationAgreement
from roundelay.runtimes.processes.options import ProcessInfo, TransportName
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.key_value_store import start_store
from roundelay.runtimes.processes.transport.shared_memory_communicator import SharedMemoryCommunicator
from roundelay.runtimes.processes.transport.torch_communicator import TorchCommunicator
from roundelay.runtimes.processes.transport_choice import Endpoint
from roundelay.runtimes.session import PointToPoint, Session, serve_message
from roundelay.runtimes.strategy_lock import StrategyLock
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


# -- the choice of a transport ----------------------------------------------------------------------------------------


def endpoint(transport: TransportName, host: str = "here", device: str = "cpu") -> Endpoint:
    return Endpoint(ProcessInfo(0, 1, host=host), transport, device, lambda reason: None)


def connect(one: Endpoint, addresses: list[dict[str, Any]]) -> Communicator:
    store, _ = start_store("127.0.0.1")
    agreement = GenerationAgreement(0, list(range(len(addresses))), {}, addresses)
    recorder = WallClock(Record(None, clock="wall"), 0, 1)
    session, comm = one.connect(agreement, 0, StrategyLock(), recorder, store)
    session.close()
    return comm


@pytest.mark.skipif(not segments.usable(), reason="memory is shared on Linux on x86-64 only")
def test_memory_is_shared_if_all_members_can() -> None:
    one = endpoint("auto")
    assert isinstance(connect(one, [one.address]), SharedMemoryCommunicator)
    for chosen in (endpoint("gloo"), endpoint("auto", device="cuda")):
        assert chosen.address["memory"] is None
        assert isinstance(connect(chosen, [chosen.address]), TorchCommunicator)


@pytest.mark.skipif(not segments.usable(), reason="memory is shared on Linux on x86-64 only")
@pytest.mark.parametrize("other", [{"host": "there", "memory": {}}, {"host": "here", "memory": None}])
def test_shared_memory_that_some_member_lacks_is_refused(other: dict[str, Any]) -> None:
    one = endpoint("shared")
    with pytest.raises(SettingsError, match="cannot share memory; use gloo"):
        connect(one, [one.address, other])
    one.close()


# -- the store --------------------------------------------------------------------------------------------------------


def test_the_first_writer_of_a_key_decides() -> None:
    store, _ = start_store("127.0.0.1")
    assert store.setdefault("plan", {"size": 2}) == {"size": 2}
    assert store.clone().setdefault("plan", {"size": 3}) == {"size": 2}
    assert store.setdefault("nothing", None) is None
    assert store.has("nothing")


def test_missing_keys() -> None:
    store, _ = start_store("127.0.0.1")
    assert store.get("x") is None
    assert store.log("x") == ""
    assert store.add("x", 0) == 0
    store.delete("y")
    store.set("y", 1)
    store.delete("y")
    assert not store.has("y")


def test_prefixes_separate_keys_also_of_clones() -> None:
    store, _ = start_store("127.0.0.1")
    one, other = store.with_prefix("one"), store.with_prefix("other")
    one.set("key", 1)
    assert other.get("key") is None
    assert one.clone().get("key") == 1
    assert one.with_prefix("inner").get("key") is None


def test_waiting_for_a_key_occupies_one_client_only() -> None:
    store, _ = start_store("127.0.0.1")
    waiting = store.clone()
    thread = threading.Thread(target=waiting.wait, args=("ready",))
    thread.start()
    store.append("log", "a ")
    store.append("log", "b ")
    store.set("ready", True)
    thread.join(5)
    assert not thread.is_alive()
    assert store.log("log") == "a b "
