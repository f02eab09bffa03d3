"""AD-PSGD, asynchronous decentralized SGD: each learner mixes with its ring neighbours at its own pace."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from roundelay.config import Seed
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.topologies import find_topology
from roundelay.strategy import Asynchronous


@dataclass
class ADPSGD(Asynchronous):
    r"""Mix with the left and the right neighbour while the gradient is computed; no learner waits.

    $W_{k+1} = W_k T - \gamma\, g(\Phi_k)$, where $\Phi_k$ are the older weights at which a learner took its gradient
    and $T$ has $\frac13$ for each learner and its two neighbours (``complete``: $1/L$ for all).

    There is no common clock.  Learner $l$ sends $w_l$ to each neighbour $j$.  At once, even while it computes, $j$
    subtracts $d = \frac16 (w_j - w_l)$ from its own weights and replies with $d$; $l$ adds $d$ before its step.  Both
    ends of each link send such requests: at equal speeds that is exactly $T$.  Requests that cross keep $\sum_l w_l$
    too, since both ends move by the same difference.  A link's share below $\frac12$ makes mixing a contraction; at
    $\frac12$ an even ring would oscillate forever.

    Lian et al., 2018 (arXiv 1710.06952, algorithm 1); with left and right neighbour, for acoustic models, Cui et al.,
    2020 (arXiv 2002.10502) and 2021 (arXiv 2110.11199).  Departure: a request and its reply
    move both ends by the same difference, instead of an atomic average.
    """

    state: ClassVar[tuple[str, ...]] = ("steps",)
    conserves_mean: ClassVar[bool] = True
    partial_step_ok: ClassVar[bool] = True

    topology: Literal["ring", "random-ring", "complete"] = "ring"
    seed: Seed = 0  # of the random ring
    share: float | None = None  # of a link, from both its ends; 1/(1 + number of neighbours) by default

    def check(self, size: int) -> None:
        super().check(size)
        limit = 2.0 / size if self.topology == "complete" else 0.5
        if self.share is not None and not 0 < self.share < limit:
            raise SettingsError(
                f"strategy.share must be above 0 and below {limit:g}, not {self.share}: "
                f"exchanges of {size} learners on topology {self.topology!r} may cross"
            )

    def setup(self, learner: Learner) -> None:
        self.steps = self.mixings = 0
        self.graph = find_topology(self.topology, seed=self.seed)
        degree = len(self.graph.links(learner.comm.rank, learner.comm.size))
        self.half_share = (1.0 / (1 + degree) if self.share is None else self.share) / 2
        self.sent = learner.weights.clone()
        self.expected: set[int] = set()
        self.replies: list[Awaitable[Tensor]] = []

    def overlap(self, learner: Learner) -> None:
        comm = learner.comm
        neighbours = self.graph.neighbours(comm.rank, comm.size, self.steps)
        self.sent.copy_(learner.weights)
        self.expected, self.mixings = set(neighbours), 0
        self.replies = [comm.request(learner.weights, to=neighbour) for neighbour in neighbours]

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        # During one gradient, a neighbour's first request is mixed with the weights we sent: then two requests that
        # cross give the same result in any order. Further requests of a faster neighbour use our current weights.
        mine = self.sent if source in self.expected else learner.weights
        self.expected.discard(source)
        difference = self.half_share * (mine - theirs)
        learner.weights.sub_(difference)
        self.mixings += 1
        return difference

    async def step(self, learner: Learner) -> None:
        for reply in self.replies:
            learner.weights.add_(await reply)
        self.expected = set()
        learner.log("staleness", self.mixings + len(self.replies))  # mixings since the snapshot of this gradient
        learner.descend()
        self.steps += 1
