"""The order of what happens to a learner: written down, saved and read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lone_member import LoneMember
from roundelay.errors import DataError
from roundelay.strategies import ADPSGD
from roundelay.training.event_order import RecordedOrder, read_order, watch


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    member, order = LoneMember(ADPSGD(), torch.nn.Linear(3, 1, bias=False)), RecordedOrder()
    member.start_strategy(warmup=False)
    serving = order.serving(member.active_strategy)

    async def happen() -> None:
        assert await order.claimed(12) == 12
        await order.mark("g")
        await watch(member.world, order).mean(torch.ones(3))

    member.alone.run(happen())
    serving.serve(member.learner, member.learner.weights.clone(), 3)
    order.save(tmp_path / "order.txt")
    assert read_order(tmp_path / "order.txt") == order.tokens == ["c12", "g", "r", "s3"]


def test_without_an_order_nothing_is_watched() -> None:
    member = LoneMember(ADPSGD())
    assert watch(member.world, None) is member.world


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("c1 g r", r"order\.txt: .*end"),
        ("c1 x g\n", "token 1 is 'x'"),
        ("c1 s\n", "token 1 is 's'"),
        ("cx\n", "token 0 is 'cx'"),
    ],
)
def test_what_is_no_order_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "order.txt").write_text(text)
    with pytest.raises(DataError, match=said):
        read_order(tmp_path / "order.txt")


def test_an_empty_order_is_one(tmp_path: Path) -> None:
    RecordedOrder().save(tmp_path / "order.txt")
    assert read_order(tmp_path / "order.txt") == []
