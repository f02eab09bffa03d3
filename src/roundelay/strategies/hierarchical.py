"""H-ADPSGD, or any other strategy between nodes: a node of learners acts as one learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from roundelay.communicator import DeferredReply
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.adpsgd import ADPSGD
from roundelay.strategy import Strategy


@dataclass
class Hierarchical(Strategy):
    r"""Learners of a node average their gradients; the node's leader takes part in ``outer`` with the mean.

    $g = \frac{\sum_{l \in node} n_l g_l(w)}{\sum_{l \in node} n_l}$, then $w \gets outer(w, g)$ at the leader, then
    $w_l \gets w$ for all learners of the node; $n_l$ are the frames of learner $l$.

    A node claims minibatches for all its learners; ``outer`` decides which nodes step together.  A node weighs as much
    as its learners: by frames if ``outer`` weights by frames, by their number in a mean of weights
    (``learner.multiplicity``).  Servers of ``outer`` are ranks outside all nodes.  If neighbours change the leader's
    weights between two steps, the leader takes its next gradient at the new weights, and the others of its node at the
    weights that were broadcast, one mixing behind.

    Zhang et al., 2019 (arXiv 1907.05701, H-ADPSGD: AD-PSGD between nodes, synchronous SGD inside).  Departures: any
    strategy as ``outer``; nodes of unequal size, made in rank order, and again after a loss.
    """

    state: ClassVar[tuple[str, ...]] = ("outer",)

    outer: Strategy = field(default_factory=ADPSGD)
    learners_per_node: int | list[int] = 2

    def __post_init__(self) -> None:
        self.servers = self.outer.servers

    def nodes(self, size: int) -> list[range]:
        """Divide ``size`` learners into nodes in their order; if some are left over, they are one more node."""
        nodes, begin = [], 0
        each = [self.learners_per_node] * size if isinstance(self.learners_per_node, int) else self.learners_per_node
        for count in [*each, size]:
            if begin >= size:
                break
            nodes.append(range(begin, min(begin + count, size)))
            begin += count
        return nodes

    def owned_parts(self, learner: Learner) -> Sequence[slice] | None:
        return self.outer.owned_parts(learner) if self.leads else ()

    def check(self, size: int) -> None:
        super().check(size)
        given = self.learners_per_node
        counts = [given] if isinstance(given, int) else given
        if min(counts, default=0) < 1:
            raise SettingsError(f"strategy.learners_per_node must be at least 1, not {given}")
        if isinstance(given, list) and sum(given) != size:
            raise SettingsError(f"strategy.learners_per_node {given} has room for {sum(given)} learners, not {size}")
        self.outer.check(len(self.nodes(size)))

    def lockstep_groups(self, size: int) -> Sequence[Sequence[int]]:
        nodes = self.nodes(size)
        groups = self.outer.lockstep_groups(len(nodes))
        return [[index for node in group for index in nodes[node]] for group in groups]

    def setup(self, learner: Learner) -> None:
        world, servers = learner.comm, self.servers
        nodes = [[servers + index for index in node] for node in self.nodes(world.size - servers)]
        nodes = [*([server] for server in range(servers)), *nodes]
        leaders = [node[0] for node in nodes]
        self.inside = world.split(nodes)
        self.leads = self.inside.rank == 0
        learner.comm = world.split([leaders, *([rank] for node in nodes for rank in node[1:])])
        learner.multiplicity = self.inside.size
        if self.leads:
            self.outer.setup(learner)
            self.fallback_note = self.outer.fallback_note

    def overlap(self, learner: Learner) -> None:
        self.counting = self.inside.mean(torch.tensor([float(learner.frames)], dtype=torch.float64))
        if self.leads:
            self.outer.overlap(learner)

    async def step(self, learner: Learner) -> None:
        own, mean_frames = learner.frames, float(await self.counting)
        await self.inside.mean(learner.grad, weight=learner.weight)
        if self.leads:
            learner.frames = round(mean_frames * self.inside.size)
            await self.outer.step(learner)
            learner.frames = own
        await self.inside.broadcast(learner.weights, root=0)

    def serve(self, learner: Learner, theirs: Tensor, source: int) -> Tensor | DeferredReply:
        return self.outer.serve(learner, theirs, source)

    async def before_barrier(self, learner: Learner) -> None:
        if self.leads:
            await self.outer.before_barrier(learner)
        await self.inside.broadcast(learner.weights, root=0)

    async def consensus(self, learner: Learner) -> Tensor:
        consensus = await self.outer.consensus(learner) if self.leads else learner.weights.clone()
        return await self.inside.broadcast(consensus, root=0)
