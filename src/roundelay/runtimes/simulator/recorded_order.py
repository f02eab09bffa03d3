"""A simulated learner that follows a recorded order of events."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from roundelay.errors import Mismatch
from roundelay.runtimes.simulator.event_loop import VirtualFuture, VirtualLoop
from roundelay.strategy import Strategy


class ReplayOrder:
    """Lets a learner's events happen in the order of ``tokens``: each waits for all before it."""

    def __init__(self, loop: VirtualLoop, member: str, tokens: Sequence[str]) -> None:
        self._loop, self._member, self._tokens, self._turn = loop, member, tokens, 0
        self._waiting: dict[str, deque[Callable[[str], None]]] = defaultdict(deque)

    async def mark(self, what: str) -> None:
        """Wait until event ``what`` is next in the order."""
        await _Turn(self, what)

    async def claimed(self, base: int) -> int:
        """Wait for the next claim in the order; return the number that was claimed."""
        return int((await _Turn(self, "c"))[1:])

    def serving(self, strategy: Strategy) -> Strategy:
        """Return the strategy itself: `serve_in_turn` orders the requests as they arrive."""
        return strategy

    def serve_in_turn(self, source: int, action: Callable[[], None]) -> None:
        """Call ``action`` when a request of rank ``source`` is next in the order."""
        self.wait(f"s{source}", lambda _: action())

    def wait(self, what: str, action: Callable[[str], None]) -> None:
        """Call ``action`` with the token when ``what`` is next in the order."""
        self._waiting[what].append(action)
        self._advance()

    def _advance(self) -> None:
        while self._turn < len(self._tokens):
            token = self._tokens[self._turn]
            queue = self._waiting["c" if token[0] == "c" else token]
            if not queue:
                return
            self._turn += 1
            action = queue.popleft()
            self._loop.call_later(0.0, lambda action=action, token=token: action(token))  # type: ignore[misc]
        for what, queue in self._waiting.items():
            if queue:
                raise Mismatch(f"{self._member} did {what!r} after the end of the recorded order")


class _Turn:
    """Our turn; the learner continues at that very moment, before any other event."""

    def __init__(self, order: ReplayOrder, what: str) -> None:
        self._order, self._what = order, what

    def __await__(self) -> Generator[VirtualFuture[Any], None, str]:
        future: VirtualFuture[str] = VirtualFuture(f"its turn for {self._what!r}, as recorded")

        def go(token: str) -> None:
            future.value, future.done = token, True
            for resume in future.callbacks:
                resume()

        self._order.wait(self._what, go)
        yield future
        return future.value
