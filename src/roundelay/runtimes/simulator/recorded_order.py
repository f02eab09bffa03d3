"""A simulated learner that keeps to a written order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from roundelay.errors import Mismatch
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop
from roundelay.strategy import Strategy

__all__ = ["ReplayOrder"]


class ReplayOrder:
    """Lets a learner's doings happen in the order of ``tokens``, each when those before it have happened."""

    def __init__(self, kernel: VirtualLoop, member: str, tokens: Sequence[str]) -> None:
        self._kernel, self._who, self._tokens, self._turn = kernel, member, tokens, 0
        self._waiting: dict[str, deque[Callable[[str], None]]] = defaultdict(deque)

    async def mark(self, what: str) -> None:
        """Wait for our turn."""
        await _Turn(self, what)

    async def claimed(self, base: int) -> int:
        """Wait for our turn, and claim what was claimed."""
        return int((await _Turn(self, "c"))[1:])

    def serving(self, strategy: Strategy) -> Strategy:
        """Return the strategy itself: who is served when is decided as requests arrive."""
        return strategy

    def serve_in_turn(self, source: int, action: Callable[[], None]) -> None:
        """Have ``action`` called when it is the turn of this request."""
        self.wait(f"s{source}", lambda _: action())

    def wait(self, what: str, action: Callable[[str], None]) -> None:
        """Have ``action`` called in its turn."""
        self._waiting[what].append(action)
        self._go_on()

    def _go_on(self) -> None:
        while self._turn < len(self._tokens):
            token = self._tokens[self._turn]
            queue = self._waiting["c" if token[0] == "c" else token]
            if not queue:
                return
            self._turn += 1
            action = queue.popleft()
            self._kernel.after(0.0, lambda action=action, token=token: action(token))  # type: ignore[misc]
        for what, queue in self._waiting.items():
            if queue:
                raise Mismatch(f"{self._who} did {what!r} after the end of the recorded order")


class _Turn:
    """Our turn; the learner goes on at that very moment, before anything else happens."""

    def __init__(self, order: ReplayOrder, what: str) -> None:
        self._order, self._what = order, what

    def __await__(self) -> Generator[VirtualFuture[Any], None, str]:
        event: VirtualFuture[str] = VirtualFuture(f"its turn to go on with {self._what!r}, as recorded")

        def go(token: str) -> None:
            event.value, event.done = token, True
            for resume in event.waiting:
                resume()

        self._order.wait(self._what, go)
        yield event
        return event.value
