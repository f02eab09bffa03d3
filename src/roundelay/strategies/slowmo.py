"""SlowMo: model averaging with a slow momentum over the averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.config import Count, Fraction, Positive
from roundelay.learner import Learner
from roundelay.strategy import OptimizerState, Strategy


@dataclass
class SlowMo(Strategy):
    r"""Descend and average as in model averaging, then take a step with momentum along the averaged change.

    After every ``period``-th step, with $x_0$ the weights after the last average and $\bar x$ their mean now,

    $u \gets \beta u + \frac{x_0 - \bar x}{\gamma}$,  $x_0 \gets x_0 - \alpha\gamma u$,

    and all continue from $x_0$.  The model is $x_0 - \alpha (x_0 - \bar x)$: within a period the steps so far
    count, without the momentum.  With $\beta = 0$ and $\alpha = 1$ this is model averaging.  At a constant rate
    $\gamma$ it is BMUF with the classical block momentum $\eta = \beta$ and the block learning rate $\zeta = \alpha$.

    Wang, Tantia, Ballas & Rabbat, 2020, "SlowMo: improving communication-efficient distributed SGD with slow momentum"
    (arXiv 1910.00643, algorithm 1).  ``slow`` is $\gamma u$ instead of $u$: the same, but defined at rate 0 too.  It
    is rescaled when the schedule changes $\gamma$.  Buffers have no momentum: they are averaged.
    """

    state: ClassVar[tuple[str, ...]] = ("anchor", "slow", "last_rate", "steps")
    replicated: ClassVar[tuple[str, ...]] = ("slow",)

    period: Count = 10  # tau, in steps
    momentum: Fraction = 0.5  # beta
    slow_rate: Positive = 1.0  # alpha
    optimizer_state: OptimizerState = "keep"

    @property
    def join_interval(self) -> int:
        return self.period

    def setup(self, learner: Learner) -> None:
        self.start_from(learner, torch.zeros_like(learner.weights[: learner.tail]))

    def regroup(self, learner: Learner) -> None:
        self.start_from(learner, self.slow)

    def start_from(self, learner: Learner, slow: Tensor) -> None:
        """Begin at ``learner.weights`` with the momentum ``slow``."""
        self.steps, self.slow, self.anchor = 0, slow, learner.weights[: learner.tail].clone()
        self.last_rate = _rate(learner)

    async def step(self, learner: Learner) -> None:
        learner.descend()
        self.steps += 1
        if self.steps % self.period == 0:
            await learner.comm.mean(learner.weights, weight=learner.multiplicity)
            await learner.sync_optimizer(self.optimizer_state, learner.comm)
            rate, parameters = _rate(learner), learner.weights[: learner.tail]
            self.slow.mul_(self.momentum * (rate / self.last_rate if self.last_rate else 1.0))
            self.slow.add_(self.anchor - parameters)
            self.anchor.sub_(self.slow * self.slow_rate)
            parameters.copy_(self.anchor)
            self.last_rate = rate

    async def consensus(self, learner: Learner) -> Tensor:
        mean = await super().consensus(learner)
        mean[: learner.tail].copy_(self.anchor.lerp(mean[: learner.tail], self.slow_rate))
        return mean


def _rate(learner: Learner) -> float:
    """Return the current learning rate, gamma; with several groups of parameters that of the first."""
    return learner.optimizer.param_groups[0]["lr"] * learner.lr_factor if learner.optimizer is not None else 0.0
