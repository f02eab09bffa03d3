"""AD-PSGD in pairs: active learners average with passive ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.learner import Learner
from roundelay.strategies.topologies import Bipartite
from roundelay.strategy import Asynchronous


@dataclass
class PairwiseADPSGD(Asynchronous):
    r"""Active learners, half of them all, each average with one passive learner, at their own pace.

    $w_i, w_j \gets \frac12 (w_i + w_j)$ for an active $i$ and a passive $j$, while $g_i$ is computed; then
    $w_i \gets w_i - \gamma g_i$.  Passive learners take their steps in the same way, but only reply.

    The graph is bipartite, so exchanges never cross: even ranks are active, and their partners take turns at distances
    1, 3, 5, 9, … along the ring.

    Lian et al., 2018 (arXiv 1710.06952, algorithm 1 with the bipartite graph that avoids deadlocks).  Departure:
    partners take turns; theirs are drawn at random.
    """

    state: ClassVar[tuple[str, ...]] = ("steps",)
    conserves_mean: ClassVar[bool] = True
    partial_step_ok: ClassVar[bool] = True

    def check(self, size: int) -> None:
        if size > 1:
            Bipartite().check(size)

    def setup(self, learner: Learner) -> None:
        self.steps = self.mixings = 0
        pairs, size = Bipartite(), learner.comm.size
        self.graph, self.fallback_note = pairs.or_fallback(size), pairs.fallback_note(size)

    def overlap(self, learner: Learner) -> None:
        comm = learner.comm
        active = Bipartite().active(comm.rank) and comm.size > 1
        partners = self.graph.neighbours(comm.rank, comm.size, self.steps) if active else []
        self.replies = [comm.request(learner.weights, to=partner) for partner in partners]
        self.mixings = 0

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        self.mixings += 1
        return learner.move_towards(theirs, 0.5)

    async def step(self, learner: Learner) -> None:
        for reply in self.replies:
            learner.weights.sub_(await reply)
        learner.log("staleness", self.mixings + len(self.replies))
        learner.descend()
        self.steps += 1
