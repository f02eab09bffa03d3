"""Messages wait in an inbox until they are received; headers have one size."""

from __future__ import annotations

import pytest
import torch

from roundelay.errors import Mismatch
from roundelay.runtimes.messages import (
    CALL_WORDS,
    DTYPES,
    HEADER,
    KEPT_BUFFERS,
    MAGIC,
    MAX_DIMENSIONS,
    Blanks,
    Buffers,
    CollectiveCall,
    Inbox,
    Kind,
    Label,
    Layout,
    Message,
    raw_bytes,
)


def message(source: int, kind: Kind, number: int, value: float = 0.0) -> Message:
    return Message(source, Label(kind, 0, number), torch.tensor([value]), lambda: None)


def test_messages_are_taken_by_sender_and_label_in_any_order() -> None:
    inbox = Inbox()
    for source, number in ((1, 0), (2, 0), (1, 1)):
        inbox.put(message(source, Kind.EXCHANGE, number))
    later = inbox.take(1, Label(Kind.EXCHANGE, 0, 1))
    assert later is not None
    assert (later.source, later.label.number) == (1, 1)
    assert inbox.take(1, Label(Kind.EXCHANGE, 0, 1)) is None, "it is taken once"
    assert inbox.take(2, Label(Kind.EXCHANGE, 0, 0)) is not None
    assert inbox.take(3, Label(Kind.EXCHANGE, 0, 0)) is None


def test_messages_of_one_label_keep_their_order() -> None:
    inbox = Inbox()
    for value in (1.0, 2.0):
        inbox.put(message(1, Kind.REPLY, 0, value))
    taken = [inbox.take(1, Label(Kind.REPLY, 0, 0)) for _ in range(3)]
    assert [each.tensor.item() if each is not None else None for each in taken] == [1.0, 2.0, None]


def test_requests_of_all_senders_are_in_the_order_of_their_arrival() -> None:
    inbox = Inbox()
    for source in (3, 1, 2):
        inbox.put(message(source, Kind.REQUEST, 0))
    inbox.put(message(1, Kind.EXCHANGE, 0))
    taken = [inbox.take_request() for _ in range(4)]
    assert [each.source if each is not None else None for each in taken] == [3, 1, 2, None]


def test_a_header_holds_a_label_and_a_layout() -> None:
    layout = Layout.of(torch.zeros(2, 3, dtype=torch.float64))
    label = Label(Kind.GATHER, 7, 12)
    packed = HEADER.pack(MAGIC, *label, *layout.encode())
    assert len(packed) == HEADER.size
    magic, kind, group, number, *numbers = HEADER.unpack(packed)
    assert (magic, Label(Kind(kind), group, number), Layout.decode(tuple(numbers))) == (MAGIC, label, layout)


def test_weights_travel_by_their_bits() -> None:
    for weight in (0.0, 1.0, 1 / 3, 1e-300, -2.5):
        call = CollectiveCall("mean", Layout(torch.float32, (2, 3)), weight)
        assert CollectiveCall.decode(call.encode()) == call
        assert len(call.encode()) == CALL_WORDS


MEAN = CollectiveCall("mean", Layout(torch.float32, (5,)), 1.0)


BROADCAST = CollectiveCall("broadcast", Layout(torch.int64, ()), 1)


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        (MEAN, MEAN._replace(layout=Layout(torch.float32, (7,))), r"called mean\(\(7,\) float32\), rank 0 called mean"),
        (MEAN, MEAN._replace(layout=Layout(torch.float64, (5,))), r"called mean\(\(5,\) float64\), rank 0"),
        (MEAN, MEAN._replace(operation="gather"), r"called gather\(\(5,\) float32\), rank 0"),
        (BROADCAST, BROADCAST._replace(argument=2), r"called broadcast\(\(\) int64, root=2\), rank 0 called .* root=1"),
    ],
)
def test_calls_that_do_not_match(mine: CollectiveCall, theirs: CollectiveCall, text: str) -> None:
    with pytest.raises(Mismatch, match=f"collective 4: rank 3 {text}"):
        mine.check(theirs, 4, rank=0, other=3)


def test_calls_that_match() -> None:
    MEAN.check(MEAN._replace(argument=0.5), 4, rank=0, other=3)
    gather = MEAN._replace(operation="gather")
    gather.check(gather._replace(layout=Layout(torch.float32, (2, 2))), 4, rank=0, other=3)


def test_buffers_are_used_again_if_they_fit() -> None:
    buffers = Buffers()
    large, small = buffers.take(1_000_000), buffers.take(100)
    buffers.give(large)
    assert buffers.take(100) is not large
    buffers.give(small)
    assert buffers.take(900_000) is large
    assert buffers.take(60) is small


def test_buffers_of_ever_new_sizes_are_not_all_kept() -> None:
    buffers = Buffers()
    given = [buffers.take(10_000 * (k + 1)) for k in range(KEPT_BUFFERS + 1)]
    for buffer in given:
        buffers.give(buffer)
    assert buffers.take(20_000) is given[1]
    assert buffers.take(10_000) is not given[0]


@pytest.mark.parametrize("shape", [(0,), (), (3, 2)])
def test_a_tensor_lies_in_a_buffer(shape: tuple[int, ...]) -> None:
    layout, buffer = Layout(torch.float32, shape), Buffers().take(64)
    layout.view(buffer, 16).fill_(2.0)
    assert layout.view(buffer, 16).tolist() == torch.full(shape, 2.0).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (1, 2, 3, 4, 5, 6)])
def test_a_layout_comes_back_and_knows_its_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape, dtype=dtype)
    layout = Layout.of(x)
    numbers = layout.encode()
    assert len(numbers) == MAX_DIMENSIONS + 2
    assert Layout.decode(numbers) == layout == (dtype, shape)
    assert layout.nbytes == x.nbytes


def test_more_dimensions_than_fit_become_flat() -> None:
    assert Layout.of(torch.zeros(1, 2, 1, 2, 1, 2, 1)).shape == (8,)


def test_memory_that_was_given_out_is_found_once() -> None:
    blanks, x = Blanks[str](), torch.zeros(4)
    assert blanks.take(x) is None
    assert blanks.give(x, "block 7") is x
    assert blanks.take(x[:2]) is None  # a part of it is another message
    assert blanks.take(x) == "block 7"
    assert blanks.take(x) is None
    assert blanks.take(blanks.give(torch.zeros(0), "nothing")) is None


def test_bytes_are_a_view() -> None:
    x = torch.tensor([[1.0, 2.0]])
    data = raw_bytes(x)
    assert (data.dtype, data.numel()) == (torch.uint8, 8)
    data.zero_()
    assert x.tolist() == [[0.0, 0.0]]
