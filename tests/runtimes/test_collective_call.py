"""What ranks tell each other before a collective, and the memory of their messages."""

from __future__ import annotations

import pytest
import torch

from roundelay.errors import Mismatch
from roundelay.runtimes.collective_call import CALL_WORDS, CollectiveCall
from roundelay.runtimes.tensor_layout import KEPT_BUFFERS, Buffers, Layout


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
