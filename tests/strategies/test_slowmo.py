"""SlowMo against its formula, by hand, and against BMUF and model averaging."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from quadratic_task import Walk, walk
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.runtimes.cluster import Cluster, Fault
from roundelay.strategies import BMUF, Averaging, SlowMo
from roundelay.task import Scores
from tiny_jobs import sgd, simulated, tiny_job

EVEN = {"frames_per_epoch": 960}  # no learner is ever without a minibatch


def last(path: Walk) -> list[float]:
    """Return where every learner came to."""
    return [path.weights[learner][-1] for learner in sorted(path.weights)]


def test_two_learners_and_two_rounds_by_hand() -> None:
    """Rate 1/2, momentum 1/2, targets 2 and 4, from 0.

    Round 1: w = 1 and 2, mean 1.5; u = (0 - 1.5)/0.5 = -3; x = 0 + 0.5 * 3 = 1.5.
    Round 2: w = 1.75 and 2.75, mean 2.25; u = -1.5 - 1.5 = -3; x = 1.5 + 0.5 * 3 = 3.
    """
    outcome = walk(SlowMo(period=1, momentum=0.5), [2, 4, 2, 4], 2, rate=0.5)
    assert last(outcome) == [3.0, 3.0]


class Halving:
    """A schedule that halves the rate every 64 frames."""

    def __call__(self, frames: float) -> float:
        return float(0.5 ** (frames // 64))

    def on_evaluation(self, scores: Scores) -> bool:
        return False


@pytest.mark.parametrize("schedule", [None, Halving])
@pytest.mark.parametrize(("momentum", "slow_rate"), [(0.0, 1.0), (0.6, 1.0), (0.8, 0.5)])
def test_it_follows_its_formula(momentum: float, slow_rate: float, schedule: Callable[[], Halving] | None) -> None:
    period, learners, rate = 4, 3, 0.1
    log: list[tuple[Tensor, float]] = []

    class Logged(SlowMo):
        async def step(self, learner: Learner) -> None:
            await super().step(learner)
            if learner.comm.rank == 0 and self.steps % self.period == 0:
                log.append((self.anchor.clone(), learner.lr_factor))

    strategy = Logged(period=period, momentum=momentum, slow_rate=slow_rate)
    job = tiny_job(strategy, minibatches=60, optimizer=sgd(rate), schedule=schedule, task=EVEN)
    simulated(job, learners)
    # the oracle: local SGD by hand from each logged anchor, then the formula
    task, module = job.task, job.task.make_module()
    x: Tensor = torch.nn.utils.parameters_to_vector(module.parameters()).detach().double()
    u = torch.zeros_like(x)
    for number, (_, factor) in enumerate(log):
        mean = torch.zeros_like(x)
        for learner in range(learners):
            torch.nn.utils.vector_to_parameters(x.float(), module.parameters())
            for k in range(period):
                first = (number * period + k) * learners
                module.zero_grad()
                task.loss(module, task.load(*divmod(first + learner, task.minibatches_per_epoch))).backward()
                now = schedule()(first * 16) if schedule else 1.0
                with torch.no_grad():
                    for p in module.parameters():
                        assert p.grad is not None
                        p.sub_(p.grad, alpha=rate * now)
            mean += torch.nn.utils.parameters_to_vector(module.parameters()).detach().double() / learners
        gamma = rate * factor
        u = momentum * u + (x - mean) / gamma
        x = x - slow_rate * gamma * u
    outcome = log[-1][0]
    places = Learner(job.task.make_module(), None).slots
    seen = torch.cat([outcome[place.part] for place in places]).double()
    torch.testing.assert_close(seen, x, rtol=0, atol=1e-5)
    assert len(log) == 5


def test_without_momentum_it_is_averaging_and_with_it_bmuf() -> None:
    def trained(strategy: Averaging | BMUF | SlowMo) -> Tensor:
        return simulated(tiny_job(strategy, minibatches=60, task=EVEN), 3).consensus

    plain = trained(SlowMo(period=5, momentum=0.0))
    torch.testing.assert_close(plain, trained(Averaging(period=5)), rtol=0, atol=1e-6)
    slow = trained(SlowMo(period=5, momentum=0.6, slow_rate=0.7))
    block = BMUF(block=5, momentum=0.6, rate=0.7, form="classical", optimizer_state="keep")
    torch.testing.assert_close(slow, trained(block), rtol=0, atol=1e-6)
    assert not torch.allclose(slow, plain, atol=1e-3)


def test_buffers_are_averaged_without_momentum() -> None:
    job = tiny_job(SlowMo(period=2, momentum=0.9), minibatches=80, task={"batch_norm": True})
    outcome = simulated(job, 2)
    variances = [
        p.view(outcome.consensus) for p in outcome.trainings[0].learner.slots if p.name.endswith("running_var")
    ]
    assert variances
    assert all(float(variance.min()) > 0 for variance in variances)


def test_a_loss_keeps_the_momentum() -> None:
    cluster = Cluster(faults=[Fault(learner=1, at_seconds=1.25)])
    outcome = simulated(tiny_job(SlowMo(period=2), minibatches=60), 3, cluster)
    assert outcome.trainings[0].member.num_learners == 2
    assert torch.isfinite(outcome.consensus).all()
    strategies = [outcome.trainings[k].strategy for k in (0, 2)]
    assert all(isinstance(s, SlowMo) and s.slow.norm() > 0 for s in strategies)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(SettingsError, match=r"momentum must be at least 0 and below 1, not 1\.0"):
        SlowMo(momentum=1.0).check(4)
    with pytest.raises(SettingsError, match="period must be at least 1, not 0"):
        SlowMo(period=0).check(4)
    with pytest.raises(SettingsError, match="slow_rate must be above 0, not 0"):
        SlowMo(slow_rate=0.0).check(4)


def test_a_run_that_ends_within_a_period_counts() -> None:
    # one step from 0 to 2 and to 4: half of the way to the mean 3
    assert walk(SlowMo(period=10, slow_rate=0.5), [4, 8], 2).consensus == 1.5
