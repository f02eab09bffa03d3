"""Synchronous SGD: the mean gradient at every step."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.compression import Compression
from roundelay.strategy import Strategy


@dataclass
class Synchronous(Strategy):
    r"""Every learner takes the same step along the mean of all gradients.

    $w \gets w - \gamma \frac{\sum_l n_l g_l(w)}{\sum_l n_l}$ with $n_l$ the frames of learner $l$.

    That is SGD on one large minibatch, whatever the number of learners (Cui et al., 2020, arXiv 2002.10502, SC-PSGD).
    With ``bucket_bytes`` parts of the gradient are averaged while the backward pass computes the rest; with
    ``compression``, which needs the whole gradient, fewer bytes are sent.  One learner sends nothing, and compresses
    nothing.
    """

    state: ClassVar[tuple[str, ...]] = ("residual", "factors")
    whole: ClassVar[bool] = True
    bucket_bytes: int = 0
    compression: Compression | None = None

    def check(self, size: int) -> None:
        if self.bucket_bytes < 0:
            raise SettingsError(f"strategy.bucket_bytes must be at least 0, not {self.bucket_bytes}")
        if self.compression is not None:
            self.compression.check()
            if self.bucket_bytes:
                kind = type(self.compression).__name__
                raise SettingsError(f"strategy.compression {kind} needs bucket_bytes = 0, not {self.bucket_bytes}")

    def setup(self, me: Learner) -> None:
        self.averaging: list[Awaitable[Tensor]] = []
        self.residual = self.factors = me.weights.new_zeros(0)
        if self.compression is not None:
            self.residual, self.factors = me.weights.new_zeros(me.tail), self.compression.factors(me)

    def overlap(self, me: Learner) -> None:
        self.averaging = []

    def ready(self, me: Learner, part: slice) -> None:
        self.averaging.append(me.comm.mean(me.grad[part], weight=me.weight))

    async def step(self, me: Learner) -> None:
        if me.comm.size == 1:
            return me.descend()
        if self.compression is not None:
            self.residual, self.factors = await self.compression.mean(me, self.residual, self.factors)
        else:
            for part in self.averaging or [me.comm.mean(me.grad, weight=me.weight)]:
                await part
        return me.descend(me.grad)

    async def consensus(self, me: Learner) -> Tensor:
        return me.weights.clone()
