"""The contract on real processes and real MPI ranks, over the whole registry.

Strategies whose learners step together give the simulator's weights to the bit.  The others depend on who was faster:
they train every minibatch once, agree on a consensus, conserve what they must (debug mode), come to about the same
loss, and, replayed in the simulator in the order that they wrote down, to the very same weights.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from contract_jobs import MINIBATCHES, entry, job_of
from roundelay.runtimes.cluster import Cluster
from roundelay.runtimes.mpi import mpi_launcher
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.simulator.simulation import replay
from roundelay.strategies import STRATEGIES
from strategy_cases import CASES, fitting
from tiny_jobs import simulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOLERANCE = 0.5
"""By how much, in the logarithm, the held-out loss of an asynchronous run may differ from the simulated one's."""

CASE_NAMES = [*STRATEGIES, "nodes by bmuf", "asgd with shards and a barrier", "synchronous in parts"]


def check(case: str, learners: int, results: list[dict[str, Any]]) -> None:
    """Check what the ranks of a run returned, servers first."""
    strategy = CASES[case]()
    trained = sorted(number for result in results for number in result["trained"])
    assert trained == list(range(MINIBATCHES))
    consensus = torch.tensor(results[0]["consensus"])
    assert all(torch.equal(torch.tensor(result["consensus"]), consensus) for result in results)
    expected = simulated(job_of(case), learners)
    if len(strategy.lockstep_groups(learners)) == 1:
        assert torch.equal(consensus, expected.consensus)
    else:
        loss = expected.trainings[-1].scores["loss"]
        assert abs(math.log(results[-1]["loss"] / loss)) < TOLERANCE
    orders = [result["order"] for result in results]
    again = replay(job_of(case).training, Cluster(), orders, servers=strategy.servers)
    assert torch.equal(again.consensus, consensus)


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("case", CASE_NAMES)
def test_processes(case: str, learners: int) -> None:
    strategy = CASES[case]()
    learners = fitting(strategy, learners)
    results = launcher.run(entry("train"), case, size=learners + strategy.servers)
    check(case, learners, results)


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """What MPI ranks come to: by their number, by case."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    found: dict[int, dict[str, list[dict[str, Any]]]] = {request.param: {}}
    by_size: dict[int, list[str]] = {}
    for case in CASE_NAMES:
        strategy = CASES[case]()
        by_size.setdefault(fitting(strategy, request.param) + strategy.servers, []).append(case)
    for size, cases in by_size.items():
        results = mpi_launcher.run(entry("train_under_mpi"), cases, size=size)  # type: ignore[arg-type]  # any JSON
        for index, case in enumerate(cases):
            found[request.param][case] = [result[index] for result in results]
    return found


@pytest.mark.parametrize("case", CASE_NAMES)
def test_mpi(case: str, ranks: dict[int, dict[str, list[dict[str, Any]]]]) -> None:
    for learners, found in ranks.items():
        check(case, fitting(CASES[case](), learners), found[case])
