"""SGP, stochastic gradient push: gossip in one direction, with weights that make up for uneven sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.learner import Learner
from roundelay.strategies.topologies import FixedGraph, Topology, find_topology, fitting
from roundelay.strategy import Strategy


@dataclass
class SGP(Strategy):
    r"""Take a step, keep a share of the result and push the same share to each peer of this iteration.

    $x_l \gets \sum_k p_{lk} (x_k - \gamma g_k(z_k))$,  $\omega_l \gets \sum_k p_{lk} \omega_k$,
    $z_l = x_l / \omega_l$,

    where $p_{lk} = \frac{1}{1+d_k}$ if $k$ pushes to $l$, with $d_k$ the number of $k$'s peers, and for $k = l$.

    Whatever is sent arrives somewhere: columns of $P$ sum to 1 and the push-sum weights $\omega$ to $n$, and so $z_l$
    tends to the mean even where the rows do not sum to 1.  On the one-peer exponential graph, the default, they do,
    and $\omega = 1$; on ``edges`` of uneven degree they do not.  Gradients are taken at $z$, which is what
    ``learner.weights`` holds; buffers ride along in it.

    Assran, Loizou, Ballas & Rabbat, 2019, "Stochastic gradient push for distributed deep learning" (arXiv 1811.10792,
    algorithm 1).
    """

    state: ClassVar[tuple[str, ...]] = ("steps", "push_weight")

    topology: str = "exponential"
    edges: list[tuple[int, int]] | None = None  # in place of a topology
    seed: int = 0  # of the random ring

    def check(self, size: int) -> None:
        self._wanted().check(size)

    def setup(self, learner: Learner) -> None:
        wanted, self.steps, self.push_weight, self.fallback_note = self._wanted(), 0, 1.0, ""  # omega
        self.graph = fitting(wanted, learner.comm.size)
        if self.graph is not wanted:
            self.fallback_note = f"{wanted.name} does not fit {learner.comm.size} learners: {self.graph.name} instead"

    async def step(self, learner: Learner) -> None:
        x = learner.weights.mul_(self.push_weight)
        learner.descend()
        links = self.graph.links(learner.comm.rank, learner.comm.size, self.steps)
        share = 1.0 / (1 + len(links))
        x.mul_(share)
        self.push_weight *= share
        pushed = torch.cat([x, x[:1].clone().fill_(self.push_weight)])
        for arriving in [learner.comm.exchange(pushed, *link) for link in links]:
            theirs = await arriving
            x.add_(theirs[:-1])
            self.push_weight += float(theirs[-1:])
        x.div_(self.push_weight)
        self.steps += 1

    async def consensus(self, learner: Learner) -> Tensor:
        return await learner.comm.mean(learner.weights.clone(), weight=self.push_weight)  # the mean of x

    def _wanted(self) -> Topology:
        if self.edges is not None:
            return FixedGraph(tuple((a, b) for a, b in self.edges))
        return find_topology(self.topology, seed=self.seed)
