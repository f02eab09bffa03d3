"""Awaitables that block, and the lock that one thread holds while it runs strategy code."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

from roundelay.errors import NumericalError
from roundelay.runtimes.blocking import Blocking, Settled, StrategyLock, run_blocking


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
