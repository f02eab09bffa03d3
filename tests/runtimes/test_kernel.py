"""Virtual time."""

from __future__ import annotations

import pytest

from roundelay.errors import Deadlock
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop


def test_ties_happen_in_the_order_of_their_scheduling() -> None:
    kernel, seen = VirtualLoop(), list[int]()
    for number in range(20):
        kernel.after(1.0, lambda number=number: seen.append(number))  # type: ignore[misc]  # a default is no mystery
    kernel.run()
    assert seen == list(range(20))


def test_shuffled_ties_are_another_order_and_the_same_each_time() -> None:
    def order(seed: int) -> list[int]:
        kernel, seen = VirtualLoop(shuffle=seed), list[int]()
        for number in range(20):
            kernel.after(1.0, lambda number=number: seen.append(number))  # type: ignore[misc]
        kernel.run()
        return seen

    assert order(1) == order(1) != list(range(20))
    assert order(1) != order(2)


def test_tasks_wait_for_each_other() -> None:
    kernel, said = VirtualLoop(), list[tuple[str, float]]()
    bell: VirtualFuture[str] = VirtualFuture("the bell")

    async def ring() -> None:
        await kernel.sleep(2.0)
        kernel.happen(bell, "ding")

    async def listen() -> str:
        word = await bell
        said.append((word, kernel.now))
        return word

    kernel.spawn(ring(), "ringer")
    end = kernel.spawn(listen(), "listener").end
    kernel.run()
    assert said == [("ding", 2.0)]
    assert end.value == "ding"


def test_a_deadlock_is_named() -> None:
    kernel = VirtualLoop()

    async def wait() -> None:
        await VirtualFuture("the moon")

    kernel.spawn(wait(), "learner 3")
    with pytest.raises(Deadlock, match="learner 3 awaits the moon"):
        kernel.run()


def test_an_event_that_fails_raises_where_it_is_awaited() -> None:
    kernel, caught = VirtualLoop(), list[str]()
    event: VirtualFuture[None] = VirtualFuture("an event")

    async def wait() -> None:
        try:
            await event
        except ValueError as error:
            caught.append(str(error))

    kernel.spawn(wait(), "learner 0")
    kernel.after(1.0, lambda: kernel.fail(event, ValueError("no")))
    kernel.run()
    assert caught == ["no"]


def test_a_killed_task_runs_no_further() -> None:
    kernel, steps = VirtualLoop(), list[float]()

    async def walk() -> None:
        while True:
            steps.append(kernel.now)
            await kernel.sleep(1.0)

    task = kernel.spawn(walk(), "learner 0")
    kernel.after(2.5, task.kill)
    kernel.run()
    assert steps == [0.0, 1.0, 2.0]
