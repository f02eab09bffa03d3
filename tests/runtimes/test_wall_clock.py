"""The clock and the spans of runtimes of real time."""

from __future__ import annotations

import io
import json
import time
from typing import Any

from torch import nn

from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.wall_clock import WallClock


def clock_with_record() -> tuple[WallClock, io.StringIO]:
    file = io.StringIO()
    return WallClock(Record(file, clock="wall"), 2, 4), file


def spans(file: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    return [line for line in lines if "seconds" in line]


def test_time_is_recorded_under_the_learners_name() -> None:
    clock, file = clock_with_record()
    assert clock.member == "learner 2"
    clock.span("wait", 0.0, 0.5)
    clock.learner = Learner(nn.Linear(2, 2))
    clock.learner.index, clock.learner.is_server = 1, True
    clock.span("serve", 0.5, 0.75)
    clock.count_bytes(100)
    assert [(span["member"], span["event"]) for span in spans(file)] == [("learner 2", "wait"), ("server 1", "serve")]
    assert clock.record.totals["server 1"]["bytes"] == 100


def test_all_time_of_a_pause_is_evaluation() -> None:
    clock, file = clock_with_record()
    clock.pause_clock(paused=True)
    clock.span("wait", 0.0, 0.1)
    time.sleep(0.001)
    clock.pause_clock(paused=False)
    clock.pause_clock(paused=False)
    assert [span["event"] for span in spans(file)] == ["evaluate"]


def test_a_clock_continues_where_it_was_captured() -> None:
    clock, _ = clock_with_record()
    clock.set_clock(100.0)
    state = clock.capture()
    assert 100.0 <= state["now"] < 101.0
    later, _ = clock_with_record()
    later.restore({"now": state["now"]})
    assert 100.0 <= later.now() < 102.0
    later.pause_clock(paused=False)  # a run is restored while the clock is paused
    assert later.record.totals["learner 2"]["evaluate"] < 1.0
