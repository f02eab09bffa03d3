"""Virtual time."""

from __future__ import annotations

import pytest

from roundelay.errors import Deadlock
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop


def test_ties_happen_in_the_order_of_their_scheduling() -> None:
    loop, seen = VirtualLoop(), list[int]()
    for number in range(20):
        loop.call_later(1.0, lambda number=number: seen.append(number))  # type: ignore[misc]  # a default is no mystery
    loop.run()
    assert seen == list(range(20))


def test_shuffled_ties_are_another_order_and_the_same_each_time() -> None:
    def order(seed: int) -> list[int]:
        loop, seen = VirtualLoop(shuffle=seed), list[int]()
        for number in range(20):
            loop.call_later(1.0, lambda number=number: seen.append(number))  # type: ignore[misc]
        loop.run()
        return seen

    assert order(1) == order(1) != list(range(20))
    assert order(1) != order(2)


def test_tasks_wait_for_each_other() -> None:
    loop, said = VirtualLoop(), list[tuple[str, float]]()
    bell: VirtualFuture[str] = VirtualFuture("the bell")

    async def ring() -> None:
        await loop.sleep(2.0)
        loop.set_result(bell, "ding")

    async def listen() -> str:
        word = await bell
        said.append((word, loop.now))
        return word

    loop.spawn(ring(), "ringer")
    end = loop.spawn(listen(), "listener").end
    loop.run()
    assert said == [("ding", 2.0)]
    assert end.value == "ding"


def test_a_deadlock_is_named() -> None:
    loop = VirtualLoop()

    async def wait() -> None:
        await VirtualFuture("the moon")

    loop.spawn(wait(), "learner 3")
    with pytest.raises(Deadlock, match="learner 3 awaits the moon"):
        loop.run()


def test_an_event_that_fails_raises_where_it_is_awaited() -> None:
    loop, caught = VirtualLoop(), list[str]()
    event: VirtualFuture[None] = VirtualFuture("an event")

    async def wait() -> None:
        try:
            await event
        except ValueError as error:
            caught.append(str(error))

    loop.spawn(wait(), "learner 0")
    loop.call_later(1.0, lambda: loop.set_exception(event, ValueError("no")))
    loop.run()
    assert caught == ["no"]


def test_a_killed_task_runs_no_further() -> None:
    loop, steps = VirtualLoop(), list[float]()

    async def walk() -> None:
        while True:
            steps.append(loop.now)
            await loop.sleep(1.0)

    task = loop.spawn(walk(), "learner 0")
    loop.call_later(2.5, task.kill)
    loop.run()
    assert steps == [0.0, 1.0, 2.0]
