"""A learner alone in its process: no communication, the same training loop."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from roundelay.communicator import Communicator, DeferredReply
from roundelay.errors import CommunicationError
from roundelay.learner import Learner
from roundelay.runs.record import Record
from roundelay.runtime import GradientWork, MakePlan, Membership
from roundelay.runtimes.blocking import Settled
from roundelay.runtimes.wall_clock import WallClock
from roundelay.strategy import Strategy


class _Alone:
    """The communicator of a group of one."""

    rank, size = 0, 1

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        return Settled(x)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        return Settled([x.clone()])

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        return Settled(x)

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        return Settled(x.clone())

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        assert self._runtime.serving is not None, "a request before the strategy was set up"
        learner, strategy = self._runtime.serving
        reply = strategy.serve(learner, x.clone(), 0)
        if isinstance(reply, DeferredReply):
            raise CommunicationError(f"{type(strategy).__name__} lets its only learner wait for itself")
        return Settled(reply.clone())

    def blank(self, like: Tensor) -> Tensor:
        return torch.empty_like(like)

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        return self


class LocalRuntime(WallClock):
    """The runtime of a learner that is alone."""

    elastic = False

    def __init__(self, record: Record | None = None) -> None:
        super().__init__(record if record is not None else Record(None, clock=self.clock), 0, 1)
        self.serving: tuple[Learner, Strategy] | None = None
        self._counters: dict[str, int] = {}

    async def rendezvous(self, learner: Learner, report: dict[str, Any], make_plan: MakePlan) -> Membership:
        """Make the plan from our own report."""
        self.learner, learner.comm = learner, _Alone(self)
        return Membership(0, 0, 1, make_plan([report], []))

    def start_serving(self, learner: Learner, strategy: Strategy) -> None:
        """Serve our own requests from now on."""
        self.serving = (learner, strategy)

    async def stop_serving(self, learner: Learner) -> None:
        """Do nothing: no request is under way."""

    def fetch_add(self, key: str, amount: int) -> Awaitable[int]:
        """Add to a counter of our own."""
        before = self._counters.get(key, 0)
        self._counters[key] = before + amount
        return Settled(before)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Let no time pass: a learner that is alone waits for nobody."""
        return Settled(None)

    async def compute(self, learner: Learner, work: GradientWork) -> None:
        """Compute the gradient."""
        with self.computing(learner):
            work.run(None)
            for part in work.parts:
                work.ready(part)

    @contextlib.contextmanager
    def computing(self, learner: Learner) -> Iterator[Callable[[], AbstractContextManager[object]]]:
        """Record the time; no other thread runs strategy code."""
        begin = self.now()
        yield contextlib.nullcontext
        if learner.frames:
            self.span("compute", begin, frames=learner.frames)

    def mark_safe(self, numbers: Sequence[int]) -> None:
        """Do nothing: there are no other learners."""

    def has_newcomers(self, key: str = "") -> bool:
        """Return false: no learner can join."""
        return False
