"""Who is slow before a synchronization point: its last minibatches are finished sooner by the others."""

from __future__ import annotations

from collections.abc import Sequence

SLOW = 1.5  # times the others' mean seconds for a minibatch; below that a learner always claims
SLACK = 1.1  # how much later than the others a learner may come to a synchronization point


class Pace:
    """How many minibatches per second a group of learners that step together trains, and how many the others.

    The group sees both at each claim: how far the common counter has advanced since its last one.  At synchronization
    points all tell their rates.
    """

    def __init__(self, state: Sequence[float] = ()) -> None:
        self.seconds, self.others_rate = state or (0.0, 0.0)
        self._own = 1
        self._last: tuple[float, int] | None = None

    @property
    def state(self) -> list[float]:
        """What a checkpoint saves."""
        return [self.seconds, self.others_rate]

    @property
    def rate(self) -> float:
        """The group's minibatches per second; 0 if that is not known."""
        return self._own / self.seconds if self.seconds else 0.0

    def start_interval(self) -> None:
        """Forget when the last claim was: between intervals all wait for each other."""
        self._last = None

    def ready(self, now: float) -> None:
        """Note that the minibatch of the last claim is trained."""
        if self._last is not None and now > self._last[0]:
            self.seconds = now - self._last[0]

    def claimed(self, base: int, own: int, left: int, now: float) -> None:
        """Note a claim of ``own`` of the ``left`` minibatches of an interval that found the counter at ``base``."""
        self._own = own
        self.saw(base, left, now)
        self._last = (now, base)

    def saw(self, base: int, left: int, now: float) -> None:
        """Note that the counter is at ``base``."""
        if self._last is not None and now > self._last[0] and base < left:  # else others may have waited
            self.others_rate = max(0, base - self._last[1] - self._own) / (now - self._last[0])

    def met(self, total_rate: float) -> None:
        """Note the sum of all rates, at a synchronization point."""
        if self.seconds:
            self.others_rate = max(0.0, total_rate - self.rate)

    def is_slow(self, others: int) -> bool:
        """Return whether this group takes much longer than the others do in the mean."""
        return self.seconds * self.others_rate > SLOW * others

    def seconds_left(self, left: int, others: int) -> float:
        """Return in how many seconds the others have claimed all that is ``left``; 0: claim some of it.

        They are done when each has finished its last one.
        """
        if not self.is_slow(others) or self.seconds <= SLACK * (left + others) / self.others_rate:
            return 0.0
        return max(left, 0.5 * others) / self.others_rate
