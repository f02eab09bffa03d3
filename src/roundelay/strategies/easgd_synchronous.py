"""Synchronous EASGD: elastic averaging around a centre that all learners have."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.easgd import EASGD


@dataclass
class SynchronousEASGD(EASGD):
    r"""All learners have the same centre, and average with it every ``period`` steps.

    $x_l \gets x_l - \gamma g_l(x_l) - \alpha (x_l - \tilde x)$,  $\tilde x \gets (1-\beta)\tilde x + \beta\frac1N\sum_l
    x_l$ with $\beta = N\alpha$, all with the old $x_l$ and $\tilde x$.

    The model is the centre after one more average, so it contains the steps since the last one.

    Zhang, Choromanska & LeCun, 2015 (the synchronous form), otherwise as `EASGD`; it needs no server.
    """

    state: ClassVar[tuple[str, ...]] = (*EASGD.state, "centre")
    replicated: ClassVar[tuple[str, ...]] = ("centre",)
    servers = 0

    @property
    def join_interval(self) -> int:
        return self.period

    def check(self, size: int) -> None:
        super().check(size)
        alpha = self.elasticity
        if alpha is not None and size * alpha > 1:
            raise SettingsError(f"strategy.elasticity must be at most 1/N for N = {size} learners, not {alpha}")

    def lockstep_groups(self, size: int) -> Sequence[Sequence[int]]:
        return [range(size)]

    def setup(self, learner: Learner) -> None:
        super().setup(learner)
        self.centre = learner.weights.clone()
        self.beta = learner.comm.size * self.alpha

    def regroup(self, learner: Learner) -> None:
        centre = self.centre  # it contains what lost learners have trained
        self.setup(learner)
        self.centre = centre

    def pull(self, learner: Learner) -> Awaitable[Tensor]:
        self.difference = self.alpha * (learner.weights - self.centre)
        return learner.comm.mean(learner.weights.clone())

    def elastic(self, pulled: Tensor) -> Tensor:
        self.centre.lerp_(pulled, self.beta)
        return self.difference

    async def consensus(self, learner: Learner) -> Tensor:
        mean = await learner.comm.mean(learner.weights.clone())
        return self.centre.lerp(mean, self.beta)
