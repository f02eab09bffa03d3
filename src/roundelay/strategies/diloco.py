"""DiLoCo: BMUF's Nesterov form, with long blocks and AdamW inside."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from roundelay.config import Count, Fraction, Positive
from roundelay.learner import Learner
from roundelay.strategies.bmuf import BMUF
from roundelay.strategy import OptimizerState, Strategy


@dataclass
class DiLoCo(BMUF):
    r"""Learners take ``block`` steps of their own; the mean of their changes is an outer optimizer's gradient.

    All start a block at $\theta(t-1)$.  With $\bar\theta(t)$ the mean of the learners' weights after it,

    $D(t) = \theta(t-1) - \bar\theta(t)$,  $v(t) = \mu\,v(t-1) + D(t)$,
    $\theta(t) = \theta(t-1) - \nu\,(D(t) + \mu\,v(t))$,

    which is ``torch.optim.SGD(lr=nu, momentum=mu, nesterov=True)`` along the pseudo-gradient $D$.  Put $G = -D$,
    $\Delta = -\nu v$, $\eta = \mu$, $\zeta = \nu$ and $W^g = \theta$: these are the equations of BMUF with Nesterov's
    block momentum.  So this file is BMUF's with other defaults.

    The inner optimizer is the experiment's; DiLoCo uses AdamW, and each learner keeps its moments.  The model is
    $\theta$, from which learners continue; BMUF's is $W = \theta - \eta\Delta$, a momentum step behind.

    Douillard et al., 2023, "DiLoCo: distributed low-communication training of language models" (arXiv 2311.08105,
    algorithm 1).
    """

    block: Count = 500
    momentum: Fraction | None = 0.9  # mu
    rate: Positive = 0.7  # nu
    optimizer_state: OptimizerState = "keep"

    async def consensus(self, learner: Learner) -> Tensor:
        return await Strategy.consensus(self, learner)
