"""ASGD by accumulated updates: learners descend on their own, and push their change since the last push."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.config import Count, Fraction, Positive
from roundelay.learner import Learner
from roundelay.strategies.asgd import ASGD


@dataclass
class UpdatesASGD(ASGD):
    r"""Descend for ``period`` steps, push the change to the server, and continue from its weights.

    Learner: $\delta_l = w_l - w_l^{pulled}$.  Server: $\Delta \gets \mu\Delta + \delta_l$,  $w \gets w + \alpha\Delta$,
    and the learner continues from $w_l \gets w$.

    Learners have the optimizer and its schedule; the server adds up, if wanted with a ``momentum`` of its own.
    Servers, staleness bound and damping (here of $\alpha$) are as in `ASGD`.

    The ASGD of Li et al., 2017 (arXiv 1703.05880) as in their program: $\alpha$ is 0.5 by the server's defaults and
    $\mu$ is 0.  Their variant with a momentum, MASGD, has $\mu = 0.9$ and $\alpha = 1$.  Departure: before a barrier
    learners push the rest of their change, so that the server's weights contain all of it.
    """

    state: ClassVar[tuple[str, ...]] = (*ASGD.state, "steps", "base", "velocity")
    steps_on_server: ClassVar[bool] = False

    period: Count = 10  # steps
    rate: Positive = 0.5  # alpha
    momentum: Fraction = 0.0  # mu

    def owned_parts(self, learner: Learner) -> Sequence[slice] | None:
        # Learners have changes that they have not pushed, so all are averaged; one of several servers has only a part.
        return None if learner.is_server and self.servers > 1 else ()

    def setup(self, learner: Learner) -> None:
        super().setup(learner)
        self.steps = 0  # since the last push
        self.base = learner.weights.clone()
        self.velocity = torch.zeros_like(learner.weights)

    async def step(self, learner: Learner) -> None:
        learner.descend()
        self.steps += 1
        if self.steps == self.period:
            await self.push_change(learner)

    async def push_change(self, learner: Learner) -> None:
        """Push the change since the last push."""
        await self.push(learner, learner.weights - self.base)
        self.base.copy_(learner.weights)
        self.steps = 0

    def apply(self, learner: Learner, theirs: Tensor, part: slice, staleness: int) -> None:
        self.velocity[learner.tail :].zero_()  # buffers have no momentum
        velocity = self.velocity[part].mul_(self.momentum).add_(theirs)
        learner.weights[part].add_(velocity, alpha=self.rate / max(1, staleness) ** self.damping)

    async def before_barrier(self, learner: Learner) -> None:
        if self.steps:
            await self.push_change(learner)
        await super().before_barrier(learner)
