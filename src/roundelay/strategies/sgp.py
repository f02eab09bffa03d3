"""SGP, stochastic gradient push: gossip in one direction, with weights that make up for uneven sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.config import Seed
from roundelay.learner import Learner
from roundelay.strategies.topologies import FixedGraph, Topology, find_topology
from roundelay.strategy import Strategy
from roundelay.vectors.chunks import combine


@dataclass
class SGP(Strategy):
    r"""Take a step, keep a share of the result and push the same share to each peer of this iteration.

    $x_l \gets \sum_k p_{lk} (x_k - \gamma g_k(z_k))$,  $\omega_l \gets \sum_k p_{lk} \omega_k$,
    $z_l = x_l / \omega_l$,

    where $p_{lk} = \frac{1}{1+d_k}$ if $k$ pushes to $l$, with $d_k$ the number of $k$'s peers, and for $k = l$.

    Nothing that is sent is lost: columns of $P$ sum to 1 and the push-sum weights $\omega$ to $n$.  So $z_l$ tends to
    the mean even if the rows do not sum to 1.  On the one-peer exponential graph, the default, they do, and
    $\omega = 1$; on ``edges`` of uneven degree they do not.  Gradients are taken at $z$, which is
    ``learner.weights``; its buffers are pushed like all weights.

    Assran, Loizou, Ballas & Rabbat, 2019, "Stochastic gradient push for distributed deep learning" (arXiv 1811.10792,
    algorithm 1).
    """

    state: ClassVar[tuple[str, ...]] = ("steps", "push_weight")

    topology: str = "exponential"
    edges: list[tuple[int, int]] | None = None  # instead of a topology
    seed: Seed = 0  # of the random ring

    def check(self, size: int) -> None:
        super().check(size)
        self._wanted().check(size)

    def setup(self, learner: Learner) -> None:
        wanted, size = self._wanted(), learner.comm.size
        self.steps, self.push_weight = 0, 1.0  # omega
        self.graph, self.fallback_note = wanted.or_fallback(size), wanted.fallback_note(size)

    async def step(self, learner: Learner) -> None:
        comm = learner.comm
        x = learner.weights  # z; x itself is omega z
        if self.push_weight != 1.0:
            x.mul_(self.push_weight)
        learner.descend()
        links = self.graph.links(comm.rank, comm.size, self.steps)
        share = 1.0 / (1 + len(links))
        self.push_weight *= share
        pushes = [comm.exchange(self._pushed(learner, x, share), *link) for link in links]
        arrived = [await push for push in pushes]
        for theirs in arrived:
            self.push_weight += float(theirs[-1:])
        combine(x, share, [(1.0, theirs[:-1]) for theirs in arrived])
        if self.push_weight != 1.0:
            x.div_(self.push_weight)
        self.steps += 1

    def _pushed(self, learner: Learner, x: Tensor, share: float) -> Tensor:
        """Return our share of ``x`` and of the push-sum weight, in one message."""
        pushed = learner.comm.blank(x.new_empty(x.numel() + 1))
        torch.mul(x, share, out=pushed[:-1])
        pushed[-1:].fill_(self.push_weight)
        return pushed

    async def consensus(self, learner: Learner) -> Tensor:
        return await learner.comm.mean(learner.weights.clone(), weight=self.push_weight)  # the mean of x

    def _wanted(self) -> Topology:
        if self.edges is not None:
            return FixedGraph(tuple((a, b) for a, b in self.edges))
        return find_topology(self.topology, seed=self.seed)
