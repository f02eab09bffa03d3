"""Virtual time: futures, tasks that await them, and a clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from roundelay.errors import Deadlock

T = TypeVar("T")


class VirtualFuture(Generic[T]):
    """A result that comes once, as a value or an error; await it."""

    __slots__ = ("callbacks", "done", "error", "label", "value")

    def __init__(self, label: object) -> None:
        self.label = label  # str() of it names what a deadlocked task awaits
        self.done = False
        self.error: BaseException | None = None
        self.callbacks: list[Callable[[], None]] = []
        self.value: T

    def __await__(self) -> Generator[VirtualFuture[Any], None, T]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class VirtualTask(Generic[T]):
    """A coroutine that the loop runs; ``end`` is the future of its result."""

    __slots__ = ("_due", "_loop", "_resume", "_running", "_work", "awaits", "end", "label")

    def __init__(self, loop: VirtualLoop, work: Coroutine[VirtualFuture[Any], None, T], label: str) -> None:
        self._loop, self._work, self.label = loop, work, label
        self.end: VirtualFuture[T] = VirtualFuture(label)
        self.awaits: VirtualFuture[Any] | None = None
        self._running, self._due = True, False
        self._resume = self.resume  # one bound method for all waits

    def resume(self) -> None:
        """Run until the next await of a future that is not done."""
        if not self._running:
            self._due = True
            return
        self.awaits = None
        try:
            awaited = self._work.send(None)
        except StopIteration as stop:
            self._loop.tasks.pop(self, None)
            del self._resume  # break the reference cycle now, without the garbage collector
            self._loop.set_result(self.end, stop.value)
        except Exception as error:
            error.add_note(f"in {self.label}, at {self._loop.now:.6f} s of virtual time")
            raise
        else:
            self.awaits = awaited
            awaited.callbacks.append(self._resume)

    def hold(self) -> None:
        """Stop running until `release`."""
        self._running, self._due = False, False

    def release(self) -> None:
        """Continue after `hold`."""
        if self in self._loop.tasks:
            self._running = True
            if self._due:
                self._loop.call_later(0.0, self.resume)

    def kill(self) -> None:
        """Stop running for good."""
        self._running = False
        self._loop.tasks.pop(self, None)
        self._work.close()


class VirtualLoop:
    """A deterministic event loop: simultaneous events happen in the order in which they were scheduled.

    With ``shuffle``, a generator with that seed breaks ties at random instead, to explore other orders.
    """

    def __init__(self, shuffle: int | None = None) -> None:
        self.now = 0.0
        self.tasks: dict[VirtualTask[Any], None] = {}
        self._agenda: list[tuple[float, float, int, Callable[[], None]]] = []
        self._next: deque[Callable[[], None]] = deque()  # due now, but scheduled after all of the agenda
        self._count = 0
        self._random = random.Random(shuffle) if shuffle is not None else None  # noqa: S311 (not for secrets)

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` after so many virtual seconds."""
        due = self.now + seconds
        if due == self.now and self._random is None:
            self._next.append(action)
            return
        self._count += 1
        tie = self._random.random() if self._random is not None else 0.0
        heapq.heappush(self._agenda, (due, tie, self._count, action))

    def jump(self, to: float) -> None:
        """Set the clock forward to ``to``: actions due now move to that time, those due in between are dropped."""
        if to > self.now:
            kept = [(max(due, to), *rest) for due, *rest in self._agenda if due == self.now or due >= to]
            self._agenda[:] = kept  # type: ignore[assignment]  # (due, tie, count, action), as before
            heapq.heapify(self._agenda)
            self.now = to

    def capture(self) -> list[Any] | None:
        """Return the state of the generator that breaks ties, if there is one."""
        return list(self._random.getstate()) if self._random is not None else None

    def restore(self, state: list[Any] | None) -> None:
        """Restore the state that `capture` returned."""
        if self._random is not None and state is not None:
            self._random.setstate((state[0], tuple(state[1]), state[2]))

    def set_result(self, future: VirtualFuture[T], value: T) -> None:
        """Complete ``future`` now with ``value``."""
        future.value, future.done = value, True
        for resume in future.callbacks:
            self.call_later(0.0, resume)

    def set_exception(self, future: VirtualFuture[Any], error: BaseException) -> None:
        """Complete ``future`` now with ``error``, unless it is done."""
        if not future.done:
            future.error, future.done = error, True
            for resume in future.callbacks:
                self.call_later(0.0, resume)

    def sleep(self, seconds: float) -> VirtualFuture[None]:
        """Return a future that is done after so many virtual seconds."""
        future: VirtualFuture[None] = VirtualFuture("the passing of time")
        self.call_later(seconds, lambda: self.set_result(future, None))
        return future

    def spawn(self, work: Coroutine[VirtualFuture[Any], None, T], label: str) -> VirtualTask[T]:
        """Start ``work`` now."""
        task = VirtualTask(self, work, label)
        self.tasks[task] = None
        self.call_later(0.0, task.resume)
        return task

    def run(self) -> None:
        """Run all scheduled actions; raise `Deadlock` if a task then still waits."""
        agenda, pop, due = self._agenda, heapq.heappop, self._next
        while agenda or due:
            if due and not (agenda and agenda[0][0] == self.now):
                due.popleft()()
                continue
            self.now, _, _, action = pop(agenda)
            action()
        if self.tasks:
            waits = "; ".join(f"{task.label} awaits {task.awaits.label}" for task in self.tasks if task.awaits)
            raise Deadlock(f"deadlock at {self.now:.6f} s of virtual time: {waits}")
