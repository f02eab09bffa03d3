"""BMUF, blockwise model-update filtering: model averaging with a momentum over whole blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from roundelay.config import Count, Fraction, Positive
from roundelay.learner import Learner
from roundelay.strategy import OptimizerState, Strategy


@dataclass
class BMUF(Strategy):
    r"""Learners descend on their own for a block; the mean of their changes is then one step with momentum.

    All start a block at $W^g(t-1)$.  After ``block`` steps, with $\bar W(t)$ the mean of the learners' weights,

    $G(t) = \bar W(t) - W^g(t-1)$,  $\Delta(t) = \eta\,\Delta(t-1) + \zeta\,G(t)$,  $W(t) = W(t-1) + \Delta(t)$,

    and all continue from $W^g(t) = W(t)$ with the classical block momentum, from $W^g(t) = W(t) + \eta\,\Delta(t)$ with
    Nesterov's.  The model is $W$, not $W^g$.

    Each of $N$ learners contributes $1/N$ of a mean.  A filter with the gain $1/(1-\eta) = N$ makes up for it at an
    unchanged learning rate; so the default is $\eta = 1 - 1/N$.  The Nesterov form is the recursion of
    ``torch.optim.SGD(lr=zeta, momentum=eta, nesterov=True)`` along $-G$.  What CNTK and fairseq call Nesterov is the
    classical form at the rate $(1+\eta)\,\zeta$ (docs/strategies/bmuf.md has the conversions).

    Chen & Huo, 2016, "Scalable training of deep learning machines by incremental block training with intra-block
    parallel optimization and blockwise model-update filtering" (CBM and NBM).  Departures: a run that ends within a
    block adds that block's $\zeta\,G$ to the model; buffers, such as batch-norm statistics, are averaged, unfiltered.
    """

    state: ClassVar[tuple[str, ...]] = ("model", "delta", "steps")
    replicated: ClassVar[tuple[str, ...]] = ("delta",)

    block: Count = 50  # tau, in steps
    block_frames: Count | None = None  # of each learner; used instead of the steps, rounded up to whole minibatches
    momentum: Fraction | None = None  # eta; 1 - 1/N by default
    rate: Positive = 1.0  # zeta
    form: Literal["nesterov", "classical"] = "nesterov"
    optimizer_state: OptimizerState = "reset"  # as CNTK does

    @property
    def join_interval(self) -> int:
        return self.block_steps

    def setup(self, learner: Learner) -> None:
        self.start_from(learner, torch.zeros_like(learner.weights[: learner.tail]))

    def regroup(self, learner: Learner) -> None:
        self.start_from(learner, self.delta)

    def start_from(self, learner: Learner, delta: Tensor) -> None:
        """Begin a block at ``learner.weights`` with the momentum ``delta``."""
        frames = self.block_frames
        self.block_steps = self.block if frames is None else -(-frames // learner.nominal_frames)
        self.eta = 1.0 - 1.0 / learner.comm.size if self.momentum is None else self.momentum
        self.steps, self.delta, self.buffer = 0, delta, delta.clone()
        ahead = self.block_start(torch.zeros_like(delta))
        self.model = learner.weights[: learner.tail] - ahead  # so that the block starts at our weights

    def block_start(self, model: Tensor) -> Tensor:
        """Return the weights at which all learners start the next block, in a buffer."""
        if self.form == "classical":
            return self.buffer.copy_(model)
        return self.buffer.copy_(self.delta).mul_(self.eta).add_(model)

    async def step(self, learner: Learner) -> None:
        learner.descend()
        self.steps += 1
        if self.steps % self.block_steps == 0:
            await learner.comm.mean(learner.weights, weight=learner.multiplicity)
            await learner.sync_optimizer(self.optimizer_state, learner.comm)
            parameters = learner.weights[: learner.tail]
            block = parameters.sub_(self.block_start(self.model))  # G, where the parameters were
            self.delta.mul_(self.eta).add_(block, alpha=self.rate)
            self.model.add_(self.delta)
            parameters.copy_(self.block_start(self.model))

    async def consensus(self, learner: Learner) -> Tensor:
        mean = await learner.comm.mean(learner.weights.clone(), weight=learner.multiplicity)
        block = mean[: learner.tail] - self.block_start(self.model)  # G so far; 0 after a finished block
        mean[: learner.tail].copy_(self.model + self.rate * block)
        return mean
