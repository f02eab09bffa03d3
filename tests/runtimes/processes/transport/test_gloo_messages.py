"""Messages over gloo: they arrive whole and in order, farewells are quiet, and whoever waits can be told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from roundelay.errors import LearnerLost
from roundelay.runtimes.messages import HEADER, Kind, Label, Message
from roundelay.runtimes.processes.transport.gloo_messages import PACKET_BYTES, GlooTransport
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, start_store
from roundelay.runtimes.processes.transport.torch_communicator import connect_by_device

EXCHANGE, REQUEST = Label(Kind.EXCHANGE, 5, 0), Label(Kind.REQUEST, 5, 1)


class Three:
    """Three posts in one process, joined by gloo."""

    def __init__(self) -> None:
        self._store, _ = start_store("127.0.0.1")
        self.lost: list[tuple[int, str]] = []
        self.posts = [self._make(self._store, rank) for rank in range(3)]

    def _make(self, store: KeyValueStore, rank: int) -> GlooTransport:
        connect = connect_by_device(store, 0, "127.0.0.1")
        return GlooTransport(
            rank, 3, lambda: connect("post", rank, 3, "cpu"), lambda reason: self.lost.append((rank, reason))
        )

    def close(self) -> None:
        threads = [threading.Thread(target=post.close) for post in self.posts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._store.close()


@pytest.fixture
def three() -> Iterator[Three]:
    made = Three()
    yield made
    made.close()


def received(post: GlooTransport, source: int, label: Label) -> Tensor:
    message: Message = post.wait(lambda: post.receive(source, label))
    copy = message.tensor.clone()
    message.release()
    return copy


@pytest.mark.parametrize("numel", [0, 1, (PACKET_BYTES - HEADER.size) // 4, PACKET_BYTES, 100_000])
def test_a_tensor_arrives_as_it_was_sent(three: Three, numel: int) -> None:
    x = torch.randn(numel)
    three.posts[0].send(2, EXCHANGE, x)
    x_then = x.clone()
    x.zero_()  # sending has copied
    assert torch.equal(received(three.posts[2], 0, EXCHANGE), x_then)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int64, torch.complex64])
def test_types_and_shapes_travel_too(three: Three, dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(2, 3, 4).to(dtype)
    three.posts[1].send(0, EXCHANGE, x)
    got = received(three.posts[0], 1, EXCHANGE)
    assert got.dtype == dtype
    assert torch.equal(got, x)


def test_messages_of_one_label_come_in_order_whatever_their_sizes(three: Three) -> None:
    sizes = [3, 5000, 1, 70_000, 2] * 10
    for number, size in enumerate(sizes):
        three.posts[0].send(1, EXCHANGE, torch.full((size,), number))
    for number, size in enumerate(sizes):
        got = received(three.posts[1], 0, EXCHANGE)
        assert got.tolist() == [number] * size


def test_requests_are_found_whoever_sent_them(three: Three) -> None:
    for rank in (0, 2):
        three.posts[rank].send(1, REQUEST, torch.tensor([rank]))
    senders = {three.posts[1].wait(three.posts[1].next_request).source for _ in range(2)}
    assert senders == {0, 2}


def test_a_farewell_is_no_loss_and_leaves_no_thread() -> None:
    before = threading.active_count()
    three = Three()
    for rank, post in enumerate(three.posts):
        post.send((rank + 1) % 3, EXCHANGE, torch.ones(10))
    for rank, post in enumerate(three.posts):
        received(post, (rank - 1) % 3, EXCHANGE)
    three.close()
    assert three.lost == []
    assert threading.active_count() <= before


def test_whoever_waits_is_told_to_stop_and_the_others_notice(three: Three) -> None:
    three.posts[0].send(1, EXCHANGE, torch.ones(1))
    received(three.posts[1], 0, EXCHANGE)
    raised: list[str] = []

    def wait() -> None:
        try:
            received(three.posts[0], 1, EXCHANGE)
        except LearnerLost as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    three.posts[0].abort("learner 1 is silent")
    thread.join(timeout=5)
    assert raised == ["learner 1 is silent"]
    three.posts[0].close()  # closes the connections, which the others see
    end = time.monotonic() + 10
    while {rank for rank, _ in three.lost} != {1, 2} and time.monotonic() < end:
        time.sleep(0.01)
    assert {rank for rank, _ in three.lost} == {1, 2}
    for post in three.posts[1:]:
        post.abort("over")


def test_nothing_is_sent_once_it_is_over(three: Three) -> None:
    three.posts[0].abort("over")
    with pytest.raises(LearnerLost, match="over"):
        three.posts[0].send(1, EXCHANGE, torch.ones(1))
