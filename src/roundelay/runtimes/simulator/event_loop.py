"""Virtual time: events, tasks that await them, and a clock that jumps from one to the next."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from roundelay.errors import Deadlock

__all__ = ["VirtualFuture", "VirtualLoop", "VirtualTask"]

T = TypeVar("T")


class VirtualFuture(Generic[T]):
    """Something that will happen once, with a value or an error; await it."""

    __slots__ = ("done", "error", "label", "value", "waiting")

    def __init__(self, label: object) -> None:
        self.label = label  # shown by str() if it is never going to happen
        self.done = False
        self.error: BaseException | None = None
        self.waiting: list[Callable[[], None]] = []
        self.value: T

    def __await__(self) -> Generator[VirtualFuture[Any], None, T]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class VirtualTask(Generic[T]):
    """A coroutine that the kernel runs; ``end`` happens when it returns."""

    __slots__ = ("_alive", "_due", "_kernel", "_resume", "_work", "awaits", "end", "label")

    def __init__(self, kernel: VirtualLoop, work: Coroutine[VirtualFuture[Any], None, T], label: str) -> None:
        self._kernel, self._work, self.label = kernel, work, label
        self.end: VirtualFuture[T] = VirtualFuture(label)
        self.awaits: VirtualFuture[Any] | None = None
        self._alive, self._due = True, False
        self._resume = self.resume  # one bound method for all waits

    def resume(self) -> None:
        """Run until the next await of something that has not happened."""
        if not self._alive:
            self._due = True
            return
        self.awaits = None
        try:
            awaited = self._work.send(None)
        except StopIteration as stop:
            self._kernel.tasks.pop(self, None)
            del self._resume  # a cycle: let it go now, not when the garbage is collected
            self._kernel.happen(self.end, stop.value)
        except Exception as error:
            error.add_note(f"in {self.label}, at {self._kernel.now:.6f} s of virtual time")
            raise
        else:
            self.awaits = awaited
            awaited.waiting.append(self._resume)

    def hold(self) -> None:
        """Run it no further until `release`."""
        self._alive, self._due = False, False

    def release(self) -> None:
        """Go on."""
        if self in self._kernel.tasks:
            self._alive = True
            if self._due:
                self._kernel.after(0.0, self.resume)

    def kill(self) -> None:
        """Run it no further."""
        self._alive = False
        self._kernel.tasks.pop(self, None)
        self._work.close()


class VirtualLoop:
    """A deterministic scheduler: simultaneous events happen in the order in which they were scheduled.

    With ``shuffle`` ties are broken at random by that seed instead, to explore other orders.
    """

    def __init__(self, shuffle: int | None = None) -> None:
        self.now = 0.0
        self.tasks: dict[VirtualTask[Any], None] = {}
        self._agenda: list[tuple[float, float, int, Callable[[], None]]] = []
        self._next: deque[Callable[[], None]] = deque()  # what is due now, and was scheduled after all of the agenda
        self._count = 0
        self._random = random.Random(shuffle) if shuffle is not None else None  # noqa: S311 (not for secrets)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have ``action`` called when so much time has passed."""
        due = self.now + seconds
        if due == self.now and self._random is None:
            self._next.append(action)
            return
        self._count += 1
        tie = self._random.random() if self._random is not None else 0.0
        heapq.heappush(self._agenda, (due, tie, self._count, action))

    def jump(self, to: float) -> None:
        """Put the clock forward: what is due now is due then, and what was due in between is not going to happen."""
        if to > self.now:
            kept = [(max(due, to), *rest) for due, *rest in self._agenda if due == self.now or due >= to]
            self._agenda[:] = kept  # type: ignore[assignment]  # (due, tie, count, action), as before
            heapq.heapify(self._agenda)
            self.now = to

    def capture(self) -> list[Any] | None:
        """Return the state of the generator that breaks ties, if there is one."""
        return list(self._random.getstate()) if self._random is not None else None

    def restore(self, state: list[Any] | None) -> None:
        """Take back what `capture` gave."""
        if self._random is not None and state is not None:
            self._random.setstate((state[0], tuple(state[1]), state[2]))

    def happen(self, event: VirtualFuture[T], value: T) -> None:
        """Let ``event`` happen now."""
        event.value, event.done = value, True
        for resume in event.waiting:
            self.after(0.0, resume)

    def fail(self, event: VirtualFuture[Any], error: BaseException) -> None:
        """Let ``event`` end now by ``error``, unless it has happened."""
        if not event.done:
            event.error, event.done = error, True
            for resume in event.waiting:
                self.after(0.0, resume)

    def sleep(self, seconds: float) -> VirtualFuture[None]:
        """Return an event that happens after so much time."""
        event: VirtualFuture[None] = VirtualFuture("the passing of time")
        self.after(seconds, lambda: self.happen(event, None))
        return event

    def spawn(self, work: Coroutine[VirtualFuture[Any], None, T], label: str) -> VirtualTask[T]:
        """Start ``work`` now."""
        task = VirtualTask(self, work, label)
        self.tasks[task] = None
        self.after(0.0, task.resume)
        return task

    def run(self) -> None:
        """Let everything happen that will; complain if someone then still waits."""
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
