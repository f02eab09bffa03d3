"""Scaling of the learning rate with the number of learners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from roundelay.config import Count, Settings


@dataclass(frozen=True)
class RateSettings(Settings):
    """The factor of the optimizer's rate.

    ``batch``: linear scaling by the frames of a step of all learners, divided by ``reference`` (Goyal et al., 2017);
    use it with a schedule that warms up.  ``learners``: the number of learners, Kaldi's effective learning rate: the
    mean of N models moves by only 1/N of each model's change (Povey et al., 2015).  With schedule ``exponential`` this
    is Kaldi's recipe; the optimizer's rate is then the initial effective one.
    """

    scale: Literal["none", "batch", "learners"] = "none"
    reference: Count | None = None
    """With ``batch``: the frames of a step for which the rate was tuned; by default those of one learner."""

    def factor(self, learners: int, frames: int) -> float:
        """Return the factor for ``learners`` learners with minibatches of ``frames`` frames each."""
        if self.scale == "none":
            return 1.0
        if self.scale == "learners":
            return float(learners)
        return learners * frames / (self.reference or frames)


def multiply_rate(optimizer: torch.optim.Optimizer, factor: float) -> torch.optim.Optimizer:
    """Multiply the rate of every group of parameters; return the optimizer."""
    for group in optimizer.param_groups:
        group["lr"] *= factor
    return optimizer
