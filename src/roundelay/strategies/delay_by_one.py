"""ADPSGD with delay by one: the averaging of the previous weights overlaps the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from roundelay.learner import Learner
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import Ring
from roundelay.strategy import Strategy


@dataclass
class DelayByOne(Strategy):
    r"""Average all weights while the gradient is computed, and take the step from the average.

    $w_l \gets \frac1L \sum_k w_k - \gamma g_l(w_l)$: the gradient is taken at the weights *before* averaging.  So the
    all-reduce costs no time of its own, and learners differ by one gradient each.  It is a barrier: a slow learner
    slows all.  With ``ring`` only neighbours are averaged, $\frac13 (w_{l-1} + w_l + w_{l+1}) - \gamma g_l(w_l)$.

    Cui et al., 2021 (arXiv 2110.11199): the fastest of their strategies if learners are equally fast; before it
    Zhang et al., 2020 (arXiv 2002.01119).  The update is that of D-PSGD with $T_u$, all entries $1/L$.
    Departure: the leader of a node (`Hierarchical`) counts as many times as the node has learners.
    """

    conserves_mean: ClassVar[bool] = True
    atomic_step: ClassVar[bool] = True

    topology: Literal["all-reduce", "ring"] = "all-reduce"

    def setup(self, learner: Learner) -> None:
        self.mean = learner.weights.clone()

    def overlap(self, learner: Learner) -> None:
        if self.topology == "all-reduce":
            self.averaging = learner.comm.mean(self.mean.copy_(learner.weights), weight=learner.multiplicity)
        else:
            self.averaging = Mixing(Ring()).mix(learner)

    async def step(self, learner: Learner) -> None:
        learner.weights.copy_(await self.averaging)
        if learner.comm.size > 1:
            learner.log("staleness", 1.0)
        learner.descend()
