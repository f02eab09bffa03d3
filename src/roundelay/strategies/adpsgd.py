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

PATIENCE = 2  # iterations


@dataclass
class ADPSGD(Asynchronous):
    r"""Mix with the left and the right neighbour while the gradient is computed; no learner waits.

    $W_{k+1} = W_k T - \gamma\, g(\Phi_k)$, where $\Phi_k$ are the older weights at which a learner took its gradient
    and $T$ has $\frac13$ for each learner and its two neighbours (``complete``: $1/L$ for all).

    There is no common clock.  Of each link one end asks: learner $l$ sends $w_l$ to its neighbour $j$.  At once, even
    while it computes, $j$ adds $d = \frac13 (w_l - w_j)$ to its own weights and replies with $d$; $l$ subtracts $d$
    before its step.  On a ring everyone asks the next learner and is asked by the one before: at equal speeds that is
    exactly $T$, with one exchange per link and iteration.  If a neighbour that should ask is silent for two iterations,
    since it is slow, we ask it.  Both ends of a link move by the same difference, which keeps $\sum_l w_l$.  A link's
    share below $\frac12$ makes mixing a contraction; at $\frac12$ an even ring would oscillate forever.

    Lian et al., 2018 (arXiv 1710.06952, algorithm 1); with left and right neighbour, for acoustic models, Cui et al.,
    2020 (arXiv 2002.10502) and 2021 (arXiv 2110.11199).  Departure: a request and its reply
    move both ends by the same difference, instead of an atomic average.
    """

    state: ClassVar[tuple[str, ...]] = ("steps",)
    conserves_mean: ClassVar[bool] = True
    partial_step_ok: ClassVar[bool] = True

    topology: Literal["ring", "random-ring", "complete"] = "ring"
    seed: Seed = 0  # of the random ring
    share: float | None = None  # of a link; 1/(1 + number of neighbours) by default

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
        self.link_share = 1.0 / (1 + degree) if self.share is None else self.share
        self.silence: dict[int, int] = {}  # by neighbour that should ask us: our iterations since it did
        self.expected: set[int] = set()
        self.replies: list[Awaitable[Tensor]] = []

    def overlap(self, learner: Learner) -> None:
        comm = learner.comm
        ours = self.graph.asks(comm.rank, comm.size, self.steps)
        theirs = set(self.graph.neighbours(comm.rank, comm.size, self.steps)) - set(ours)
        self.silence = {neighbour: self.silence.get(neighbour, 0) + 1 for neighbour in theirs}
        self.asked = ours + sorted(neighbour for neighbour in theirs if self.silence[neighbour] > PATIENCE)
        self.expected, self.mixings = theirs, 0
        self.replies = [comm.request(learner.weights, to=neighbour) for neighbour in self.asked]

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor:
        # During one gradient, a neighbour's first request is mixed with the weights at its start, which others were
        # sent: then the order of a request and a reply makes no difference.  Further requests of a faster neighbour
        # use our current weights.
        first = source in self.expected
        self.expected.discard(source)
        self.silence.pop(source, None)
        self.mixings += 1
        return learner.move_towards(theirs, self.link_share, from_snapshot=first)

    async def step(self, learner: Learner) -> None:
        for reply in self.replies:
            learner.weights.sub_(await reply)
        self.expected = set()
        learner.log("staleness", self.mixings + len(self.replies))  # mixings since the snapshot of this gradient
        learner.descend()
        self.steps += 1

    async def before_barrier(self, learner: Learner) -> None:
        self.silence = {}  # who waits for the others at a barrier is not slow
