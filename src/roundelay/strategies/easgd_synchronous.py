"""Synchronous EASGD: elastic averaging around a centre that all learners keep."""

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
    r"""All learners keep the same centre, and meet every ``period`` steps.

    $x_l \gets x_l - \gamma g_l(x_l) - \alpha (x_l - \tilde x)$,  $\tilde x \gets (1-\beta)\tilde x + \beta\frac1N\sum_l
    x_l$ with $\beta = N\alpha$, all of the old $x_l$ and $\tilde x$.

    Zhang, Choromanska & LeCun, 2015 (the synchronous form), otherwise as `EASGD`; it needs no server.
    """

    state: ClassVar[tuple[str, ...]] = (*EASGD.state, "centre")
    shared: ClassVar[tuple[str, ...]] = ("centre",)
    servers = 0

    @property
    def boundary(self) -> int:
        return self.period

    def check(self, size: int) -> None:
        super().check(size)
        if self.elasticity is not None and size * self.elasticity > 1:
            raise SettingsError(
                f"strategy.elasticity must be at most 1/N for N = {size} learners, not {self.elasticity}"
            )

    def pace(self, size: int) -> Sequence[Sequence[int]]:
        return [range(size)]

    def setup(self, me: Learner) -> None:
        super().setup(me)
        self.centre = me.weights.clone()
        self.beta = me.comm.size * self.alpha

    def regroup(self, me: Learner) -> None:
        centre = self.centre  # which has what lost learners had trained
        self.setup(me)
        self.centre = centre

    def pull(self, me: Learner) -> Awaitable[Tensor]:
        self.difference = self.alpha * (me.weights - self.centre)
        return me.comm.mean(me.weights.clone())

    def elastic(self, pulled: Tensor) -> Tensor:
        self.centre.lerp_(pulled, self.beta)
        return self.difference

    async def consensus(self, me: Learner) -> Tensor:
        return self.centre.clone()
