"""Gossip-PGA: gossip with the neighbours at each step, and sometimes an average over all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from roundelay.config import Count
from roundelay.learner import Learner
from roundelay.strategies.dpsgd import DPSGD


@dataclass
class GossipPGA(DPSGD):
    r"""Take a step, then mix with the neighbours, or, every ``period`` steps, with all.

    $W_{k+\frac12} = W_k - \gamma\, G(W_k)$,  $W_{k+1} = W_{k+\frac12} T_k$, and if $k+1$ is a multiple of $H$, the
    ``period``, $W_{k+1} = W_{k+\frac12} \frac{1}{n} \mathbf{1}\mathbf{1}^\top$.

    The global averages bound how far learners stray on a large ring, whose gap is small.  They cost as much as a step
    of synchronous SGD, but only every $H$ steps.  With plain SGD, ``period`` 1 is synchronous SGD; with a very large
    ``period`` it is D-PSGD with the step before the mixing.

    Chen, Yuan, Zhang, Pan, Xu & Yin, 2021, "Accelerating gossip SGD with periodic global averaging" (arXiv 2105.09080,
    algorithm 1, with a constant period).
    """

    atomic_step: ClassVar[bool] = False

    period: Count = 10  # H

    @property
    def join_interval(self) -> int:
        return self.period

    def overlap(self, learner: Learner) -> None:
        pass  # nothing overlaps: the weights that are mixed contain this step's gradient

    async def step(self, learner: Learner) -> None:
        learner.descend()
        self.steps += 1
        if self.steps % self.period == 0:
            mixed = await learner.comm.mean(learner.weights.clone(), weight=learner.multiplicity)
            learner.log("distance", float(torch.linalg.vector_norm(learner.weights - mixed)))
            learner.weights.copy_(mixed)
        else:
            await self.mixing.mix(learner, self.steps - 1)
