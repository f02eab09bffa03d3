"""Model averaging, also called BSP or local SGD: the mean of all weights every so many steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategy import OptimizerState, Strategy


@dataclass
class Averaging(Strategy):
    r"""Learners descend on their own and average their weights every ``period`` steps.

    $w_l \gets w_l - \gamma g_l(w_l)$, and after every ``period``-th step
    $w_l \gets \frac{\sum_k n_k w_k}{\sum_k n_k}$ with $n_k$ the frames of learner $k$ since the last average.

    Su, Chen & Xu, 2015 (arXiv 1507.01239, equations 1 and 2) average every 10 minibatches; weighting by frames, which
    uneven shards need, follows the BSP of Li et al., 2017 (arXiv 1703.05880).
    """

    state: ClassVar[tuple[str, ...]] = ("steps", "frames")

    period: int = 10
    optimizer_state: OptimizerState = "keep"

    def check(self, size: int) -> None:
        if self.period < 1:
            raise SettingsError(f"strategy.period must be at least 1, not {self.period}")

    def setup(self, me: Learner) -> None:
        self.steps = self.frames = 0

    async def step(self, me: Learner) -> None:
        me.descend()
        self.steps, self.frames = self.steps + 1, self.frames + me.frames
        if self.steps % self.period == 0:
            weight = self.frames / me.nominal_frames
            await me.comm.mean(me.weights, weight)
            await me.settle(self.optimizer_state, me.comm, weight)
            self.frames = 0
