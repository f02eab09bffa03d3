"""EASGD, elastic averaging: learners and a centre pull each other."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.config import Count, Fraction, Share
from roundelay.learner import Learner
from roundelay.strategy import Asynchronous


@dataclass
class EASGD(Asynchronous):
    r"""Every ``period`` steps a learner and the centre move towards each other by the same difference.

    $e = \alpha (x_l - \tilde x)$,  $x_l \gets x_l - e - \gamma g_l(x_l)$,  $\tilde x \gets \tilde x + e$,
    all with the old $x_l$ and $\tilde x$;  in between only $x_l \gets x_l - \gamma g_l(x_l)$.

    With ``momentum`` (EAMSGD) $v \gets \delta v - \gamma g_l(x_l + \delta v)$ and $x_l \gets x_l + v$ replace the
    gradient step.  A server has the centre.

    The model is the centre after one more exchange with each learner, in the mean over all orders of the learners:
    $\tilde x + (1 - (1-\alpha)^N)\,(\bar x - \tilde x)$.  So it contains the steps since the last exchanges.

    Zhang, Choromanska & LeCun, 2015, "Deep learning with elastic averaging SGD" (algorithms 1 and 2, EASGD and EAMSGD,
    asynchronous).  The default $\alpha = 0.9/N$ and the overlap of the exchange with the gradient are those of their
    program; Li et al., 2017 (arXiv 1703.05880) use 0.5.  Departures: $\delta$ is on top of the optimizer's own
    momentum; the default $\alpha$ is at most 1/2.
    """

    state: ClassVar[tuple[str, ...]] = ("steps", "velocity")
    servers = 1

    period: Count = 10  # tau
    elasticity: Share | None = None  # alpha; 0.9/N by default, 1/2 for one learner
    momentum: Fraction = 0.0  # delta

    def setup(self, learner: Learner) -> None:
        usual = min(0.5, 0.9 / (learner.comm.size - self.servers))  # above 1/2 a learner and the centre overshoot
        self.alpha = usual if self.elasticity is None else self.elasticity
        self.steps = 0
        self.velocity = torch.zeros_like(learner.weights)

    def overlap(self, learner: Learner) -> None:
        self.pulling = self.pull(learner) if self.steps % self.period == 0 else None
        if self.momentum and learner.frames:
            self.before = learner.weights.clone()
            learner.weights.add_(self.velocity, alpha=self.momentum)  # the gradient is taken at x + delta v

    def pull(self, learner: Learner) -> Awaitable[Tensor]:
        """Send our weights to the centre."""
        return learner.comm.request(learner.weights, to=0)

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        return learner.move_towards(theirs, self.alpha)

    async def step(self, learner: Learner) -> None:
        difference = self.elastic(await self.pulling) if self.pulling is not None else None
        learner.descend()
        if self.momentum and learner.frames:
            torch.sub(learner.weights, self.before, out=self.velocity)
            self.velocity[learner.tail :].zero_()  # buffers have no momentum
        if difference is not None:
            learner.weights.sub_(difference)
        self.steps += 1

    def elastic(self, pulled: Tensor) -> Tensor:
        """Return the difference e, given the awaited result of `pull`."""
        return pulled

    async def consensus(self, learner: Learner) -> Tensor:
        centre = await learner.comm.broadcast(learner.weights.clone(), root=0)
        mean = await learner.comm.mean(learner.weights.clone(), weight=0.0 if learner.is_server else 1.0)
        return centre.lerp_(mean, 1.0 - (1.0 - self.alpha) ** (learner.comm.size - self.servers))
