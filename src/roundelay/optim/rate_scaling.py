"""Scaling of the learning rate with the number of learners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from roundelay.config import Count, Natural, Positive, Settings, Share
from roundelay.optim.schedules import ScheduleBase
from roundelay.task import Scores


@dataclass(frozen=True)
class RateSettings(Settings):
    """The factor of the optimizer's rate.

    With ``rule = "auto"``, an experiment of a file or a table that does not say ``scale`` or ``multiplier`` gets the
    strategy's default rule for its number of learners (`roundelay.optim.default_rules`); the outcome is in
    ``multiplier``, ``warmup_frames``, ``warmup_first`` and ``chosen``, and in the settings of the strategy.

    ``batch``: linear scaling by the frames of a step of all learners, divided by ``reference`` (Goyal et al., 2017);
    use it with a schedule that warms up.  ``learners``: the number of learners, Kaldi's effective learning rate: the
    mean of N models moves by only 1/N of each model's change (Povey et al., 2015).  With schedule ``exponential`` this
    is Kaldi's recipe; the optimizer's rate is then the initial effective one.
    """

    scale: Literal["none", "batch", "learners"] = "none"
    reference: Count | None = None
    """With ``batch``: the frames of a step for which the rate was tuned; by default those of one learner."""
    rule: Literal["auto", "none"] = "auto"
    multiplier: Positive = 1.0
    """A factor on top of the scale."""
    warmup_frames: Natural = 0
    """Over so many frames of the whole run the rate rises from its share ``warmup_first`` to the whole."""
    warmup_first: Share = 0.0
    chosen: str = ""
    """What the default rule has chosen and why, in one line; empty if it has chosen nothing."""

    def factor(self, learners: int, frames: int) -> float:
        """Return the factor for ``learners`` learners with minibatches of ``frames`` frames each."""
        if self.scale == "none":
            return self.multiplier
        if self.scale == "learners":
            return learners * self.multiplier
        return learners * frames / (self.reference or frames) * self.multiplier


class RisingRate(ScheduleBase):
    """A schedule whose factor first rises linearly from the share ``first`` to the whole over ``frames``."""

    def __init__(self, schedule: ScheduleBase, frames: int, first: float) -> None:
        self.schedule, self.frames, self.first = schedule, frames, first

    def __call__(self, frames: float) -> float:
        """Return the schedule's factor, reduced during the warm-up."""
        factor = self.schedule(frames)
        if frames >= self.frames:
            return factor
        return factor * (self.first + (1.0 - self.first) * frames / self.frames)

    def on_evaluation(self, scores: Scores) -> bool:
        """Let the schedule use the scores."""
        return self.schedule.on_evaluation(scores)

    def state(self) -> dict[str, float]:
        """Return the schedule's state."""
        return self.schedule.state()

    def restore(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""
        self.schedule.restore(state)


def multiply_rate(optimizer: torch.optim.Optimizer, factor: float) -> torch.optim.Optimizer:
    """Multiply the rate of every group of parameters; return the optimizer."""
    for group in optimizer.param_groups:
        group["lr"] *= factor
    return optimizer
