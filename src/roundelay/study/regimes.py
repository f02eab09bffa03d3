"""What each strategy needs for a comparison to be fair to it: enough blocks, and a rate that fits its gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["REGIMES", "Regime", "fit_period", "nodes_for", "scaled", "scaling"]


@dataclass(frozen=True)
class Regime:
    """The conditions under which the papers of a strategy have it work."""

    period: str | None = None
    """The setting that says how many steps a block has."""
    needs: bool = False
    """Whether it carries something on over some N blocks, so that a run of few blocks shows it half begun."""
    gain: int = 1
    """Whether a step at the rate r moves the model by the mean gradient (1), or in effect by N times that (0)."""


REGIMES = {
    # The momentum over blocks remembers some N of them; its gain N makes up for the mean, at an unchanged rate.
    "bmuf": Regime("block", needs=True, gain=0),
    "diloco": Regime("block", needs=True, gain=0),
    "slowmo": Regime("block", needs=True, gain=0),
    # The centre moves by 0.9/N of the way at an exchange, and so remembers some N of each learner's.
    "easgd": Regime("period", needs=True, gain=0),
    "easgd-synchronous": Regime("period", needs=True, gain=0),
    # Averages forget at once: a long period costs, but there is nothing to be half begun.
    "averaging": Regime("period"),
    # The server takes a whole step for each gradient.
    "asgd": Regime(gain=0),
    "asgd-updates": Regime(gain=0),
}
"""Strategies that are not here take a step along the mean of all gradients and have no blocks."""


def fit_period(strategy: dict[str, Any], default: int, *, minibatches: int, learners: int, wanted: int) -> str:
    """Choose the period where none is given: at most ``default``, with ``wanted`` blocks a learner in the budget.

    Return why the cell is outside its regime, or nothing.
    """
    regime = REGIMES.get(strategy["name"], Regime())
    if regime.period is None or learners == 1:
        return ""
    steps = minibatches // learners
    given = strategy.get(regime.period)
    if given is None and f"{regime.period}_frames" not in strategy:
        given = strategy[regime.period] = max(1, min(default, steps // (wanted * learners)))
    if given is None or not regime.needs:
        return ""
    blocks = steps // given
    if blocks >= wanted * learners:
        return ""
    return f"{blocks} blocks of {given} steps fit the budget; {wanted} x {learners} learners are {wanted * learners}"


def scaling(strategy: str, *, common_batch: bool) -> float:
    """Return the power of the number of learners by which a rate grows so that steps add up as one learner's do.

    With a minibatch that is divided among the learners (``common_batch``) the mean of their gradients is one learner's
    gradient, and only a strategy with a gain of its own needs another rate.
    """
    return REGIMES.get(strategy, Regime()).gain - (1.0 if common_batch else 0.0)


def scaled(rate: float, learners: int, power: float) -> float:
    """Return the rate of so many learners, rounded as one would write it."""
    return float(f"{rate * learners**power:.6g}")


def nodes_for(learners: int) -> int:
    """Return a size of nodes for a hierarchy where the cluster has none: the divisor next to the square root."""
    return next(size for size in range(math.isqrt(learners), 0, -1) if learners % size == 0)
