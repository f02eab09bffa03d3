"""AD-PSGD on a randomized ring: fresh neighbours at every iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roundelay.strategies.adpsgd import ADPSGD


@dataclass
class RandomADPSGD(ADPSGD):
    r"""Mix as `ADPSGD` does, with the two neighbours in a ring whose order is drawn anew at each iteration.

    $W_{k+1} = W_k P_k^\top T_1 P_k - \gamma\, g(\Phi_k)$ with $P_k$ a random permutation: the distance from the mean
    shrinks by a factor near $\frac13$ (of its square) at each iteration, whatever the number of learners, where the
    fixed ring of $n$ learners needs some $n^2$ iterations.

    No coordinator draws: everyone makes $P_k$ of the ``seed`` and of the number $k$ of its own iteration.  Learners
    that have come to different iterations see different rings, which does no harm, since a request needs no consent.

    Zhang et al., 2020 (arXiv 2002.01119), and Cui et al., 2021 (arXiv 2110.11199), the randomized ring.
    """

    topology: Literal["ring", "random-ring", "complete"] = "random-ring"
