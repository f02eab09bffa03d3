"""How long a command still takes: measured from what it has done, and said in few words."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_SECONDS = 1.0  # of work, before anything is said about the rest of it
BETWEEN_SECONDS = 30.0  # without a terminal, between two lines


def say_duration(seconds: float) -> str:
    """Write a duration in short, rounded: ``8 s``, ``3 min``, ``1 h 20 min``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours} h"


class TimeLeft:
    """The time that is left of work that can be counted, by its speed since the first count."""

    def __init__(self, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self._clock = total, clock
        self._first: tuple[float, float] | None = None
        self.left: float | None = None
        """Seconds; None until they are known."""
        self.all: float | None = None
        """Seconds from the first count to the end; None until they are known."""

    def update(self, done: float) -> None:
        """Take how much is done."""
        now = self._clock()
        if self._first is None:
            self._first = now, done
            return
        began, before = self._first
        if done > before and now - began >= LEAST_SECONDS:
            each = (now - began) / (done - before)
            self.left, self.all = max(0.0, self.total - done) * each, (self.total - before) * each

    def __str__(self) -> str:
        return f"about {say_duration(self.left)} left" if self.left is not None else ""


class TimeLines:
    """Lines for a file or a pipe, where no bar moves: how long it takes, then from time to time what is left."""

    def __init__(self, what: str, total: float, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._what, self._say, self._clock = what, say, clock
        self.time_left = TimeLeft(total, clock)
        self._said: float | None = None

    def update(self, done: float) -> None:
        """Take how much is done; print a line if it is time for one."""
        self.time_left.update(done)
        if self.time_left.all is None or self.time_left.left is None:
            return
        now = self._clock()
        if self._said is None:
            self._say(f"{self._what}: about {say_duration(self.time_left.all)} in all")
        elif now - self._said < BETWEEN_SECONDS:
            return
        else:
            self._say(f"{self._what}: {done / self.time_left.total:.0%}, {self.time_left}")
        self._said = now
