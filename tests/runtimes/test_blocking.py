"""The parts that runtimes of real time share: awaitables, the strategy lock, the wall clock, errors of a process."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Generator
from typing import Any

import pytest
from torch import nn

from roundelay.errors import NumericalError, RoundelayError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtimes.blocking import Blocking, Settled, StrategyLock, run_blocking
from roundelay.runtimes.entry_point import describe_error, rebuild_error, report_error
from roundelay.runtimes.wall_clock import WallClock


def test_a_coroutine_runs_to_its_end() -> None:
    calls: list[str] = []

    async def work() -> int:
        one = await Settled(1)
        await Blocking(lambda: calls.append("waited"))
        return one + 2

    assert run_blocking(work()) == 3
    assert calls == ["waited"]


def test_blocking_calls_only_when_it_is_awaited() -> None:
    calls: list[int] = []
    Blocking(lambda: calls.append(1))
    assert calls == []


def test_an_error_of_a_blocking_call_is_raised_at_the_await() -> None:
    def fail() -> None:
        raise NumericalError("the loss is nan")

    async def work() -> str:
        try:
            await Blocking(fail)
        except NumericalError as error:
            return str(error)
        return ""

    assert run_blocking(work()) == "the loss is nan"


def test_a_foreign_awaitable_is_refused() -> None:
    class Foreign:
        def __await__(self) -> Generator[None, None, None]:
            yield

    ended: list[bool] = []

    async def work() -> None:
        try:
            await Foreign()
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="not a communicator's"):
        run_blocking(work())
    assert ended == [True]


def test_a_released_lock_lets_another_thread_in() -> None:
    lock, order = StrategyLock(), list[str]()
    waiting, inside = threading.Event(), threading.Event()
    lock.acquire()

    def serve() -> None:
        waiting.set()
        with lock.acquired():
            order.append("serve")
            inside.set()
            time.sleep(0.02)
            order.append("served")

    thread = threading.Thread(target=serve)
    thread.start()
    waiting.wait(5)
    order.append("compute")
    with lock.released():
        assert inside.wait(5)
    order.append("step")  # only after the other thread has released the lock
    thread.join(5)
    assert order == ["compute", "serve", "served", "step"]


def test_a_lock_is_held_again_after_an_error() -> None:
    lock = StrategyLock()
    lock.acquire()
    with pytest.raises(ValueError, match="inside"), lock.released():
        raise ValueError("inside")
    with lock.released(), lock.acquired():
        pass  # would deadlock if it were not held


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


@pytest.mark.parametrize(
    ("error", "member", "text"),
    [
        (NumericalError("the loss\n is nan"), "learner 1", "learner 1: the loss is nan"),
        (NumericalError("server 0: no"), "learner 1", "server 0: no"),
        (ValueError("what?"), "learner 1", "learner 1: ValueError: what?"),
        (ValueError(), None, "ValueError"),
        (KeyboardInterrupt(), "learner 1", "learner 1: interrupted"),
    ],
)
def test_an_error_in_one_line(error: BaseException, member: str | None, text: str) -> None:
    assert describe_error(error, member) == text


def test_an_error_crosses_processes() -> None:
    try:
        raise NumericalError("the loss is nan")
    except NumericalError as error:
        report = json.loads(json.dumps(report_error(error, "learner 3")))
    rebuilt = rebuild_error(report)
    assert type(rebuilt) is NumericalError
    assert str(rebuilt) == "learner 3: the loss is nan"
    assert "test_an_error_crosses_processes" in rebuilt.__notes__[0]
    assert type(rebuild_error({"type": "KeyError", "message": "x", "traceback": ""})) is RoundelayError
