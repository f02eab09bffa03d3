"""DiLoCo is torch's Nesterov SGD along the pseudo-gradient, and that is BMUF."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quadratic_task import Walk, walk
from roundelay.learner import Learner
from roundelay.strategies import BMUF, DiLoCo
from tiny_jobs import adamw, simulated, tiny_job


def last(path: Walk) -> list[float]:
    """Return where every learner came to."""
    return [path.weights[learner][-1] for learner in sorted(path.weights)]


def test_two_learners_and_two_blocks_by_hand() -> None:
    """Outer rate 1/2, momentum 1/2, inner rate 1/2, one step a block, targets 2 and 4, from 0.

    Block 1: w = 1 and 2, mean 1.5; D = -1.5, v = -1.5; theta = 0 + (1.5 + 0.75)/2 = 1.125.
    Block 2: w = 1.5625 and 2.5625, mean 2.0625; D = -0.9375, v = -1.6875; theta = 1.125 + (0.9375 + 0.84375)/2.
    """
    outcome = walk(DiLoCo(block=1, momentum=0.5, rate=0.5), [2, 4, 2, 4], 2, rate=0.5)
    assert last(outcome) == [2.015625, 2.015625]
    assert outcome.consensus == 2.015625


@pytest.mark.parametrize("learners", [1, 2, 4])
def test_the_outer_step_is_torch_nesterov_sgd_along_the_pseudo_gradient(learners: int) -> None:
    log: list[tuple[Tensor, Tensor]] = []  # the mean that a block came to, and where all go on from

    class Logged(DiLoCo):
        async def step(self, learner: Learner) -> None:
            if (self.steps + 1) % self.block_steps == 0:
                learner.descend()
                mean = await learner.comm.mean(learner.weights.clone())
                learner.grad.zero_()
                descend, learner.descend = learner.descend, lambda *_: None  # type: ignore[method-assign]  # taken already
                await super().step(learner)
                learner.descend = descend  # type: ignore[method-assign]  # put back
                if learner.comm.rank == 0:
                    log.append((mean, learner.weights.clone()))
            else:
                await super().step(learner)

    job = tiny_job(Logged(block=5), minibatches=learners * 60, optimizer=adamw())
    outcome = simulated(job, learners)
    start = Learner(job.task.make_module(), None).weights.clone()
    theta = torch.nn.Parameter(start.double())
    outer = torch.optim.SGD([theta], lr=0.7, momentum=0.9, nesterov=True)
    for mean, after in log:
        theta.grad = theta.detach() - mean.double()
        outer.step()
        torch.testing.assert_close(after.double(), theta.detach(), rtol=0, atol=2e-6)
    assert len(log) == 12
    torch.testing.assert_close(outcome.consensus.double(), theta.detach(), rtol=0, atol=2e-6)


def test_it_is_bmuf_with_another_name_and_another_model() -> None:
    settings = {"block": 5, "momentum": 0.9, "rate": 0.7}
    diloco = simulated(tiny_job(DiLoCo(**settings), minibatches=120, optimizer=adamw()), 4)  # type: ignore[arg-type]
    same = BMUF(**settings, form="nesterov", optimizer_state="keep")  # type: ignore[arg-type]
    bmuf = simulated(tiny_job(same, minibatches=120, optimizer=adamw()), 4)
    for one, other in zip(diloco.trainings, bmuf.trainings, strict=True):
        assert torch.equal(one.learner.weights, other.learner.weights)
    torch.testing.assert_close(diloco.consensus, diloco.trainings[0].learner.weights)  # theta
    strategy = bmuf.trainings[0].strategy
    assert isinstance(strategy, BMUF)
    torch.testing.assert_close(bmuf.consensus + 0.9 * strategy.delta, diloco.consensus)  # W, a momentum step behind


def test_defaults_are_the_papers() -> None:
    strategy = DiLoCo()
    assert (strategy.block, strategy.rate, strategy.momentum, strategy.form) == (500, 0.7, 0.9, "nesterov")
    assert strategy.optimizer_state == "keep"


def test_with_one_learner_it_is_faster_than_the_inner_optimizer_alone() -> None:
    """SNOO's observation: the momentum over blocks helps one learner, too."""
    alone = simulated(tiny_job(DiLoCo(block=5, momentum=0.0, rate=1.0), minibatches=120), 1)
    outer = simulated(tiny_job(DiLoCo(block=5), minibatches=120), 1)
    assert outer.trainings[0].scores["loss"] < alone.trainings[0].scores["loss"]
