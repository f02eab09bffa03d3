"""Results of `gather`, `exchange` and `request` are valid until the next operation of that kind begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import result_validity
from roundelay.communicator import Communicator
from roundelay.learner import Learner
from roundelay.runtime import Runtime
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.simulator.simulation import SimulatedRuntime, simulate
from roundelay.runtimes.single_learner import LocalRuntime
from roundelay.strategies import STRATEGIES
from strategy_cases import SETTINGS, fitting
from tiny_jobs import simulated, tiny_job


class Checks:
    """A trainee that trains nothing and checks its communicator."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.learner = runtime, Learner(nn.Linear(2, 2))

    async def run(self) -> Tensor:
        await self.runtime.rendezvous(self.learner, {}, lambda reports, safe: {})
        self.runtime.start_serving(self.learner, result_validity.Echo())
        await result_validity.check_results(self.learner.comm)
        await self.learner.comm.mean(torch.zeros(1))
        await self.runtime.stop_serving(self.learner)
        return self.learner.weights


@pytest.mark.parametrize("learners", [1, 2, 3])
def test_in_the_simulator(learners: int) -> None:
    assert len(simulate(Checks, Cluster(), learners=learners).finished) == learners


def test_alone() -> None:
    runtime = LocalRuntime()
    runtime.run(Checks(runtime).run())


class _Expiring:
    """A communicator that keeps to the letter of the rule: results expire when the next operation begins."""

    def __init__(self, comm: Communicator, written: list[str]) -> None:
        self._comm, self.written = comm, written
        self.rank, self.size = comm.rank, comm.size
        self._lent: dict[str, list[tuple[Tensor, Tensor]]] = {"gather": [], "exchange": [], "request": []}

    def mean(self, x: Tensor, weight: float = 1.0) -> Awaitable[Tensor]:
        return self._comm.mean(x, weight)

    def broadcast(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        return self._comm.broadcast(x, root)

    def gather(self, x: Tensor) -> Awaitable[list[Tensor]]:
        return self._begin("gather", lambda: self._comm.gather(x))

    def exchange(self, x: Tensor, to: int, source: int) -> Awaitable[Tensor]:
        return self._begin("exchange", lambda: self._comm.exchange(x, to, source))

    def request(self, x: Tensor, to: int) -> Awaitable[Tensor]:
        return self._begin("request", lambda: self._comm.request(x, to))

    def blank(self, like: Tensor) -> Tensor:
        return self._comm.blank(like)

    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        return _Expiring(self._comm.split(groups), self.written)

    def _begin(self, kind: str, begin: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
        for tensor, before in self._lent[kind]:
            if not torch.equal(tensor, before):
                self.written.append(kind)
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
        self._lent[kind].clear()
        return _Lending(begin(), self._lent[kind])


class _Lending:
    def __init__(self, awaited: Awaitable[Any], lent: list[tuple[Tensor, Tensor]]) -> None:
        self._awaited, self._lent = awaited, lent

    def __await__(self) -> Generator[Any, None, Any]:
        result = yield from self._awaited.__await__()
        copies = [tensor.clone() for tensor in result] if isinstance(result, list) else result.clone()
        for tensor in copies if isinstance(copies, list) else [copies]:
            self._lent.append((tensor, tensor.clone()))
        return copies


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_read_results_in_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, written = STRATEGIES[name](**SETTINGS.get(name, {})), list[str]()
    learners = fitting(strategy, 4)
    expected = simulated(tiny_job(strategy, minibatches=40), learners).consensus
    rendezvous = SimulatedRuntime.rendezvous

    async def wrapped(self: SimulatedRuntime, learner: Learner, *arguments: Any) -> Any:
        membership = await rendezvous(self, learner, *arguments)
        learner.comm = _Expiring(learner.comm, written)
        return membership

    monkeypatch.setattr(SimulatedRuntime, "rendezvous", wrapped)
    assert torch.equal(simulated(tiny_job(strategy, minibatches=40), learners).consensus, expected)
    assert not written, "results are read only"
