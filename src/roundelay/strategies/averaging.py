"""Model averaging, also called BSP or local SGD: the mean of all weights every so many steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from roundelay.config import Count
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.mixing import Mixing
from roundelay.strategies.topologies import DirectedRing, Topology, find_topology
from roundelay.strategy import OptimizerState, Strategy


@dataclass
class Averaging(Strategy):
    r"""Learners descend on their own and average their weights every ``period`` steps.

    $w_l \gets w_l - \gamma g_l(w_l)$, and after every ``period``-th step
    $w_l \gets \frac{\sum_k n_k w_k}{\sum_k n_k}$ with $n_k$ the frames of learner $k$ since the last average.

    Other topologies average with some learners instead of all.  ``butterfly``: in round $r$ with the learner at $l
    \oplus 2^r$, one half each.  ``ring``: with the learner one rank before, one half each.  ``hopping-ring``: with the
    learner $r+1$ ranks before, one half each.  These are cheaper; learners stay apart, and frames do not count.

    The consensus is the next average, taken now: a run that ends within a period loses none of its steps.

    Su, Chen & Xu, 2015 (arXiv 1507.01239, equations 1 and 2) average every 10 minibatches at a rate that grows with the
    number of learners; butterfly and rings are options of their program.  Weighting by frames, which uneven shards
    need, is from the BSP in the program of Li et al., 2017 (arXiv 1703.05880); its period is 25600 frames.
    """

    state: ClassVar[tuple[str, ...]] = ("steps", "frames", "rounds")

    period: Count = 10  # steps
    period_frames: Count | None = None  # of each learner; used instead of the steps, rounded up to whole minibatches
    topology: Literal["all-reduce", "butterfly", "ring", "hopping-ring"] = "all-reduce"
    optimizer_state: OptimizerState = "keep"

    @property
    def join_interval(self) -> int:
        return self.period_steps

    def check(self, size: int) -> None:
        super().check(size)
        if self.topology != "all-reduce":
            self._graph().check(size)
            if self.optimizer_state == "average":
                raise SettingsError(f"strategy.optimizer_state 'average' needs all-reduce, not {self.topology!r}")

    def setup(self, learner: Learner) -> None:
        self.steps = self.frames = self.rounds = 0
        frames, size = self.period_frames, learner.comm.size
        self.period_steps = self.period if frames is None else -(-frames // learner.nominal_frames)
        if self.topology != "all-reduce":
            graph = self._graph()
            self.mixing, self.fallback_note = Mixing(graph.or_fallback(size)), graph.fallback_note(size)

    async def step(self, learner: Learner) -> None:
        learner.descend()
        self.steps, self.frames = self.steps + 1, self.frames + learner.frames
        if self.steps % self.period_steps == 0:
            weight = self.frames / learner.nominal_frames
            await self.average(learner, weight)
            await learner.sync_optimizer(self.optimizer_state, learner.comm, weight)
            self.frames, self.rounds = 0, self.rounds + 1

    async def average(self, learner: Learner, weight: float) -> None:
        """Average with all learners, or with this round's partners."""
        if self.topology == "all-reduce":
            await learner.comm.mean(learner.weights, weight)
        else:
            await self.mixing.mix(learner, self.rounds)

    async def consensus(self, learner: Learner) -> Tensor:
        if self.topology != "all-reduce":
            return await super().consensus(learner)
        return await learner.comm.mean(learner.weights.clone(), weight=self.frames / learner.nominal_frames)

    def _graph(self) -> Topology:
        return DirectedRing() if self.topology == "ring" else find_topology(self.topology)  # Su et al. send one way
