"""AD-PSGD on a randomized ring: new neighbours at every iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roundelay.strategies.adpsgd import ADPSGD


@dataclass
class RandomADPSGD(ADPSGD):
    r"""Mix as `ADPSGD` does, with the two neighbours in a ring whose order is random at each iteration.

    $W_{k+1} = W_k P_k^\top T_1 P_k - \gamma\, g(\Phi_k)$ with $P_k$ a random permutation.  The squared distance from
    the mean shrinks to about $\frac13$ at each iteration, for any number of learners; a fixed ring of $n$ learners
    needs some $n^2$ iterations.

    There is no coordinator: every learner computes $P_k$ from the ``seed`` and the number $k$ of its own iteration.
    Learners at different iterations see different rings.  That does no harm: a request needs no agreement.

    Zhang et al., 2020 (arXiv 2002.01119), and Cui et al., 2021 (arXiv 2110.11199), the randomized ring.
    """

    topology: Literal["ring", "random-ring", "complete"] = "random-ring"
