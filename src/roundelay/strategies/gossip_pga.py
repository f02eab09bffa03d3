"""Gossip-PGA: gossip with the neighbours at each step, and now and then an average over all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.dpsgd import DPSGD


@dataclass
class GossipPGA(DPSGD):
    r"""Take a step, then mix with the neighbours, or, every ``period`` steps, with all.

    $W_{k+\frac12} = W_k - \gamma\, G(W_k)$,  $W_{k+1} = W_{k+\frac12} T_k$, and where $k+1$ is a multiple of $H$, the
    ``period``, $W_{k+1} = W_{k+\frac12} \frac{1}{n} \mathbf{1}\mathbf{1}^\top$.

    The global averages bound how far learners stray on a ring of many, whose gap is small; they cost as much as a
    step of synchronous SGD, but only every $H$ steps.  ``period`` 1 is synchronous SGD at plain SGD, and one that never
    comes is D-PSGD with the step before the mixing.

    Chen, Yuan, Zhang, Pan, Xu & Yin, 2021, "Accelerating gossip SGD with periodic global averaging" (arXiv 2105.09080,
    algorithm 1, with a constant period).
    """

    atomic_step: ClassVar[bool] = False

    period: int = 10  # H

    @property
    def join_interval(self) -> int:
        return self.period

    def check(self, size: int) -> None:
        super().check(size)
        if self.period < 1:
            raise SettingsError(f"strategy.period must be at least 1, not {self.period}")

    def overlap(self, learner: Learner) -> None:
        pass  # nothing overlaps: what is mixed has this step's gradient in it

    async def step(self, learner: Learner) -> None:
        learner.descend()
        self.steps += 1
        if self.steps % self.period == 0:
            mean = await learner.comm.mean(learner.weights.clone(), weight=learner.multiplicity)
            learner.log("distance", float(torch.linalg.vector_norm(learner.weights - mean)))
            learner.weights.copy_(mean)
            return
        shares = self.mixing.shares(learner.comm.rank, learner.comm.size, self.steps - 1)
        arriving = [(share, learner.comm.exchange(learner.weights, *link)) for link, share in shares]
        learner.weights.mul_(1.0 - sum(share for share, _ in arriving))
        for share, theirs in arriving:
            learner.weights.add_(await theirs, alpha=share)
