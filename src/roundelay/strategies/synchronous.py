"""Synchronous SGD: the mean gradient at every step."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.learner import Learner
from roundelay.strategy import Strategy


@dataclass
class Synchronous(Strategy):
    r"""Every learner takes the same step along the mean of all gradients.

    $w \gets w - \gamma \frac{\sum_l n_l g_l(w)}{\sum_l n_l}$ with $n_l$ the frames of learner $l$.

    That is SGD on one large minibatch, whatever the number of learners (Zhang et al., 2020, arXiv 2002.10502, SC-PSGD).
    With ``bucket_bytes`` parts of the gradient are averaged while the backward pass computes the rest.
    """

    whole: ClassVar[bool] = True
    bucket_bytes: int = 0

    def setup(self, me: Learner) -> None:
        self.averaging: list[Awaitable[Tensor]] = []

    def overlap(self, me: Learner) -> None:
        self.averaging = []

    def ready(self, me: Learner, part: slice) -> None:
        self.averaging.append(me.comm.mean(me.grad[part], weight=me.weight))

    async def step(self, me: Learner) -> None:
        for part in self.averaging or [me.comm.mean(me.grad, weight=me.weight)]:
            await part
        me.descend(me.grad)

    async def consensus(self, me: Learner) -> Tensor:
        return me.weights.clone()
