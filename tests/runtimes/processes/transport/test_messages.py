"""Messages wait in an inbox until they are received; headers have one size."""

from __future__ import annotations

import torch

from roundelay.runtimes.processes.transport.messages import HEADER, MAGIC, Inbox, Kind, Label, Message
from roundelay.runtimes.tensor_layout import Layout


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
