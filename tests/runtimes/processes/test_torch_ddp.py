"""Real processes beside torch's own, and verbs that overtake each other."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

import user_loop_jobs
from ddp_jobs import entry
from roundelay.runtimes.processes import launcher
from roundelay.runtimes.processes.options import Options
from roundelay.strategies import STRATEGIES
from tiny_jobs import sgd, simulated, tiny_job

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bucket_bytes", [0, 256])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_synchronous_equals_ddp(optimizer: str, bucket_bytes: int, tmp_path: Path) -> None:
    settings = {"optimizer": optimizer, "meet": str(tmp_path / "meet"), "bucket_bytes": bucket_bytes}
    assert max(launcher.run(entry("beside_ddp"), settings, size=2)) <= 1e-6


@pytest.mark.parametrize(("warmup_steps", "same"), [(4, True), (0, False)])
def test_averaging_is_torchs_periodic_averager_in_another_phase(warmup_steps: int, same: bool, tmp_path: Path) -> None:
    # torch averages after steps 1, 6, 11 …; with warmup_steps = period - 1 after 5, 10, 15 …, as we do
    settings = {"period": 5, "warmup_steps": warmup_steps, "meet": str(tmp_path / "meet")}
    assert (max(launcher.run(entry("beside_averager"), settings, size=2)) <= 1e-6) is same


@pytest.mark.parametrize("transport", ["shared", "gloo"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_collective_that_overtakes_another_leaves_it_alone(size: int, transport: Literal["shared", "gloo"]) -> None:
    for sizes in ([32, 128], [100, 104]):
        assert launcher.run(entry("overlapping"), sizes, size=size, options=Options(transport=transport)) == [[]] * size


@pytest.mark.parametrize("strategy", ["synchronous", "averaging"])
def test_four_over_gloo_are_close_to_the_simulator(strategy: str) -> None:
    results = launcher.run(entry("train_tiny"), strategy, size=4, options=Options(transport="gloo"))
    job = tiny_job(STRATEGIES[strategy](), minibatches=200, optimizer=sgd(0.05, 0.9))
    expected = simulated(job, 4).consensus
    for result in results:
        assert float((torch.tensor(result) - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("strategy", ["synchronous", "averaging", "adpsgd", "asgd"])
def test_a_loop_of_the_users_own_goes_on_after_a_loss(strategy: str, own: bool) -> None:
    settings = {"strategy": strategy, "victim": 2, "own": own}
    results = [r for r in launcher.run(user_loop_jobs.entry("loop"), settings, size=4) if r is not None]
    assert len(results) == 3
    assert all(result["weights"] == results[0]["weights"] for result in results)
    if not own:  # its own minibatches are gone with the victim
        first, second = ({k for result in results for k in result["epochs"][epoch]} for epoch in range(2))
        assert len(first) >= 26  # the victim had trained at most three, and what it had not is handed out again
        assert sorted(k for result in results for k in result["epochs"][1]) == list(range(30))
        assert second == set(range(30))
