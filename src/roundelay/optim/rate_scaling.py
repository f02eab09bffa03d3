"""How the learning rate grows with the number of learners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from roundelay.errors import SettingsError

__all__ = ["RateSettings", "multiply_rate"]


@dataclass(frozen=True)
class RateSettings:
    """What the optimizer's rate is multiplied by.

    ``batch``: linear scaling, by all learners' frames in a step over those that the rate was tuned for (Goyal et al.,
    2017); give it a schedule that warms up.  ``learners``: Kaldi's effective learning rate, by the number of learners,
    since a mean of their models moves by one over that of what each has moved (Povey et al., 2015); with schedule
    ``exponential`` this is Kaldi's recipe, the optimizer's rate being the initial effective one.
    """

    scale: Literal["none", "batch", "learners"] = "none"
    reference: int | None = None
    """With ``batch``: the frames in a step that the rate was tuned for; by default one learner's."""

    def __post_init__(self) -> None:
        if self.reference is not None and self.reference < 1:
            raise SettingsError(f"reference must be at least 1, not {self.reference}")

    def factor(self, learners: int, frames: int) -> float:
        """Return the factor for so many learners, each with minibatches of so many frames."""
        if self.scale == "none":
            return 1.0
        if self.scale == "learners":
            return float(learners)
        return learners * frames / (self.reference or frames)


def multiply_rate(optimizer: torch.optim.Optimizer, factor: float) -> torch.optim.Optimizer:
    """Multiply the rate of every group; return the optimizer."""
    for group in optimizer.param_groups:
        group["lr"] *= factor
    return optimizer
