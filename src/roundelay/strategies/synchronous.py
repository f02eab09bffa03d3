"""Synchronous SGD: the mean gradient at every step."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from roundelay.config import Natural
from roundelay.errors import SettingsError
from roundelay.learner import Learner
from roundelay.strategies.compression import Compression
from roundelay.strategy import Strategy


@dataclass
class Synchronous(Strategy):
    r"""Every learner takes the same step along the mean of all gradients.

    $w \gets w - \gamma \frac{\sum_l n_l g_l(w)}{\sum_l n_l}$ with $n_l$ the frames of learner $l$.

    That is SGD on one large minibatch, for any number of learners (Cui et al., 2020, arXiv 2002.10502, SC-PSGD).
    With ``bucket_bytes``, parts of the gradient are averaged while the backward pass computes the rest.  With
    ``compression``, which needs the whole gradient, fewer bytes are sent.  One learner alone sends and compresses
    nothing.
    """

    state: ClassVar[tuple[str, ...]] = ("residual", "factors")
    atomic_step: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True

    bucket_bytes: Natural = 0  # of a part that is averaged during the backward pass; 0: all at the end
    compression: Compression | None = None

    def check(self, size: int) -> None:
        super().check(size)
        if self.compression is not None:
            self.compression.check()
            if self.bucket_bytes:
                kind = type(self.compression).__name__
                raise SettingsError(f"strategy.compression {kind} needs bucket_bytes = 0, not {self.bucket_bytes}")

    def setup(self, learner: Learner) -> None:
        self.averaging: list[Awaitable[Tensor]] = []
        self.residual = self.factors = learner.weights.new_zeros(0)
        if self.compression is not None:
            self.residual, self.factors = learner.weights.new_zeros(learner.tail), self.compression.factors(learner)

    def overlap(self, learner: Learner) -> None:
        self.averaging = []

    def ready(self, learner: Learner, part: slice) -> None:
        self.averaging.append(learner.comm.mean(learner.grad[part], weight=learner.weight))

    async def step(self, learner: Learner) -> None:
        if learner.comm.size == 1:
            return learner.descend()
        await self.average_gradients(learner)
        return learner.descend(learner.grad)

    async def average_gradients(self, learner: Learner) -> None:
        if self.compression is not None:
            self.residual, self.factors = await self.compression.mean(learner, self.residual, self.factors)
        else:
            for part in self.averaging or [learner.comm.mean(learner.grad, weight=learner.weight)]:
                await part
            self.averaging = []

    async def consensus(self, learner: Learner) -> Tensor:
        return learner.weights.clone()
