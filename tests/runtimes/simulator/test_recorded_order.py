"""A replayed learner keeps to the order that was written down."""

from __future__ import annotations

import pytest

from roundelay.errors import Mismatch
from roundelay.runtimes.simulator.event_loop import VirtualLoop
from roundelay.runtimes.simulator.recorded_order import ReplayOrder


def test_what_comes_early_waits_for_its_turn() -> None:
    loop = VirtualLoop()
    happened: list[str] = []
    order = ReplayOrder(loop, "learner 2", ["s1", "c7", "s3"])
    for what in ("s3", "c", "s1"):
        order.wait(what, happened.append)
    loop.run()
    assert happened == ["s1", "c7", "s3"]


@pytest.mark.parametrize("doings", [("s1", "c", "g"), ("s3", "s1", "c"), ("s1", "s3", "c")])
def test_what_has_no_turn_is_named(doings: tuple[str, ...]) -> None:
    order = ReplayOrder(VirtualLoop(), "learner 2", ["s1", "c7"])

    def replay() -> None:
        for what in doings:
            order.wait(what, lambda _: None)

    late = next(what for what in doings if what not in ("s1", "c"))
    with pytest.raises(Mismatch, match=f"learner 2 did '{late}' after the end of the recorded order"):
        replay()
