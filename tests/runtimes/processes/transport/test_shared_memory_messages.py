"""Messages in shared memory, between two transports of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from roundelay.errors import CommunicationError, LearnerLost
from roundelay.runtimes.messages import Kind, Label
from roundelay.runtimes.processes.transport import shared_memory_segments as segments
from roundelay.runtimes.processes.transport.shared_memory_messages import SharedMemoryTransport

pytestmark = pytest.mark.skipif(not segments.usable(), reason="this machine cannot share memory")
FIRST, REQUEST = Label(Kind.EXCHANGE, 7, 1), Label(Kind.REQUEST, 7, 1)


@pytest.fixture
def pair() -> Iterator[tuple[SharedMemoryTransport, SharedMemoryTransport]]:
    ends = SharedMemoryTransport(), SharedMemoryTransport()
    for rank, end in enumerate(ends):
        end.connect(rank, [each.address for each in ends])
    yield ends
    for end in ends:
        end.close()


Pair = tuple[SharedMemoryTransport, SharedMemoryTransport]


def test_a_message_arrives_by_its_label(pair: Pair) -> None:
    left, right = pair
    sent = torch.arange(6.0).view(2, 3)
    assert left.send(1, FIRST, sent) == sent.nbytes
    assert right.receive(0, FIRST._replace(number=2)) is None
    message = right.receive(0, FIRST)
    assert message is not None
    assert message.source == 0
    assert torch.equal(message.tensor, sent)
    assert right.receive(0, FIRST) is None


def test_what_is_in_our_memory_is_not_copied(pair: Pair) -> None:
    left, right = pair
    blank = left.blank(torch.zeros(2, 300)).fill_(5.0)
    left.send(1, FIRST, blank)
    blank.fill_(6.0)  # which nobody should: this shows that it is the message itself
    message = right.receive(0, FIRST)
    assert message is not None
    assert message.tensor.tolist() == [[6.0] * 300] * 2
    message.release()
    assert left.blank(torch.zeros(2, 300)).data_ptr() != blank.data_ptr()  # still under way, as far as we know
    left.send(1, FIRST._replace(number=2), torch.zeros(1))
    assert left.blank(torch.zeros(2, 300)).data_ptr() == blank.data_ptr()


def test_sending_copies_at_once(pair: Pair) -> None:
    left, right = pair
    sent = torch.ones(4)
    left.send(1, FIRST, sent)
    sent.zero_()
    message = right.receive(0, FIRST)
    assert message is not None
    assert message.tensor.tolist() == [1.0] * 4


def test_requests_have_a_queue_of_their_own(pair: Pair) -> None:
    left, right = pair
    left.send(1, REQUEST, torch.zeros(1))
    assert right.receive(0, REQUEST) is None
    message = right.next_request()
    assert message is not None
    assert message.label == REQUEST
    assert right.next_request() is None


def test_released_memory_is_used_again(pair: Pair) -> None:
    left, right = pair
    for number in range(3 * segments.RING):  # more than may be under way at once
        label = FIRST._replace(number=number)
        left.send(1, label, torch.full((100,), float(number)))
        message = right.receive(0, label)
        assert message is not None
        assert message.tensor[0] == number
        message.release()


def test_an_abort_ends_a_wait(pair: Pair) -> None:
    left, _ = pair
    left.abort("learner 1 was lost")
    with pytest.raises(LearnerLost, match="learner 1 was lost"):
        left.wait(lambda: left.receive(1, FIRST))


def test_memory_of_another_process_is_refused() -> None:
    one, other = SharedMemoryTransport(), SharedMemoryTransport()
    try:
        with pytest.raises(CommunicationError, match="not the memory of rank 1"):
            one.connect(0, [one.address, other.address | {"nonce": "of somebody else"}])
    finally:
        one.close()
        other.close()
