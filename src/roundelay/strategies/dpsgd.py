"""D-PSGD, synchronous decentralized SGD: each learner mixes with its neighbours only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from roundelay.config import Seed
from roundelay.learner import Learner
from roundelay.strategies.mixing import MatrixMixing, Mixing, MixingBase
from roundelay.strategies.topologies import Ring, find_topology
from roundelay.strategy import Strategy


@dataclass
class DPSGD(Strategy):
    r"""Mix with the neighbours while the gradient is computed, then take the step.

    $W_{k+1} = W_k T_k - \gamma\, G(W_k)$.  Column $l$ of $W$ has the weights of learner $l$, column $l$ of $G$ its
    gradient at them, and $T_k$ is symmetric and doubly stochastic.  For one learner of a ring: $w_l \gets \frac13
    (w_{l-1} + w_l + w_{l+1}) - \gamma g_l(w_l)$.

    Mixing and gradient both start from $W_k$, so they overlap.  $T_k$ keeps the mean of all weights; how far learners
    stray from it depends on the spectral gap of $T_k$ (`roundelay theory`).

    Lian et al., 2017, "Can decentralized algorithms outperform centralized algorithms?" (D-PSGD); as SD-PSGD, with the
    ring and the random ring, in Cui et al., 2020 (arXiv 2002.10502).  Departure: ``exponential`` is directed, so its
    $T_k$ is doubly stochastic but not symmetric; a given ``matrix`` must be both.
    """

    state: ClassVar[tuple[str, ...]] = ("steps",)
    conserves_mean: ClassVar[bool] = True
    atomic_step: ClassVar[bool] = True

    topology: Literal["ring", "random-ring", "complete", "exponential"] = "ring"
    matrix: list[list[float]] | None = None  # T, instead of a topology
    seed: Seed = 0  # of the random ring

    def check(self, size: int) -> None:
        super().check(size)
        self._wanted().check(size)

    def setup(self, learner: Learner) -> None:
        self.steps, self.fallback_note, size = 0, "", learner.comm.size
        self.mixing = self._wanted()
        if isinstance(self.mixing, MatrixMixing) and len(self.mixing.rows) != size:
            self.fallback_note = f"the mixing matrix does not fit {size} learners: a ring until it does"
            self.mixing = Mixing(Ring())

    def overlap(self, learner: Learner) -> None:
        self.mixed = self.mixing.mix(learner, self.steps)

    async def step(self, learner: Learner) -> None:
        await self.mixed
        learner.descend()
        self.steps += 1

    def _wanted(self) -> MixingBase:
        if self.matrix is not None:
            return MatrixMixing(tuple(tuple(row) for row in self.matrix))
        return Mixing(find_topology(self.topology, seed=self.seed))
