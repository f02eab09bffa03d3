"""Ranks of a simulated cluster that run a coroutine of the test, without a training loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from torch import Tensor, nn

from roundelay.learner import Learner
from roundelay.runtime import Membership
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, simulate


class SimulatedRank:
    """One rank: it runs the test's coroutine, and keeps its result."""

    def __init__(self, runtime: SimulatedRuntime, work: Callable[[SimulatedRank], Awaitable[Any]]) -> None:
        self.learner, self.runtime, self._work = Learner(nn.Linear(1, 1)), runtime, work
        self.result: Any = None

    async def meet(self, report: dict[str, Any] | None = None) -> Membership:
        """Agree on a membership; the plan is the list of all reports, and what is safe of those who are lost."""
        return await self.runtime.rendezvous(
            self.learner, report or {}, lambda reports, safe: {"reports": list(reports), "safe": list(safe)}
        )

    async def run(self) -> Tensor:
        """Run the coroutine."""
        self.result = await self._work(self)
        return self.learner.weights


def on_ranks(
    work: Callable[[SimulatedRank], Awaitable[Any]], size: int, cluster: Cluster | None = None
) -> tuple[list[Any], float]:
    """Run ``work`` on each of ``size`` ranks; return what those that finished came to, and the virtual seconds."""
    outcome = simulate(lambda runtime: SimulatedRank(runtime, work), cluster or Cluster(), learners=size)
    return [rank.result for rank in outcome.finished], outcome.seconds
