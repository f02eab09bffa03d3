"""What each strategy needs for a comparison to be fair to it: enough blocks, and a rate that fits its gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from roundelay.strategies import find
from roundelay.strategy import period_setting

__all__ = ["REGIMES", "Fitted", "Regime", "fit_period", "nodes_for", "scaled", "scaling"]


@dataclass(frozen=True)
class Regime:
    """The conditions under which the papers of a strategy have it work."""

    blocks: bool = True
    """Whether a strategy with a period needs many of them in its budget."""
    remembers: bool = False
    """Whether it carries something on over some N blocks, so that it needs N times as many as one that forgets."""
    gain: int = 1
    """Whether a step at the rate r moves the model by the mean gradient (1), or in effect by N times that (0)."""


REGIMES = {
    # The momentum over blocks remembers some N of them; its gain N makes up for the mean, at an unchanged rate.
    "bmuf": Regime(remembers=True, gain=0),
    "diloco": Regime(remembers=True, gain=0),
    "slowmo": Regime(remembers=True, gain=0),
    # The centre moves by 0.9/N of the way at each of N exchanges: it follows the mean, and forgets within a period.
    "easgd": Regime(),
    "easgd-synchronous": Regime(),
    "averaging": Regime(),
    # It mixes at each step; the averages over all come on top, and with many of them it would be synchronous SGD.
    "gossip-pga": Regime(blocks=False),
    # The server takes a whole step for each gradient, or adds up what learners have moved.
    "asgd": Regime(gain=0),
    "asgd-updates": Regime(gain=0),
}
"""Strategies that are not here take a step along the mean of all gradients, and forget within a period if any."""


@dataclass(frozen=True)
class Fitted:
    """How often a strategy communicates in a cell."""

    period: int | None = None
    """Steps in a block; ``None``: there are no blocks."""
    usual: int | None = None
    """That the strategy has by default."""
    outside: str = ""
    """Why that is outside the regime of its paper, or nothing."""


def fit_period(strategy: dict[str, Any], *, minibatches: int, learners: int, wanted: int) -> Fitted:
    """Choose the period where none is given: the usual one, or the longest of which enough fit the budget.

    Enough are ``wanted`` blocks, times the learners for a strategy that remembers.
    """
    kind, regime = find(strategy["name"]), REGIMES.get(strategy["name"], Regime())
    setting = period_setting(kind) if regime.blocks else None
    if setting is None or learners == 1 or f"{setting}_frames" in strategy:
        return Fitted()
    steps, enough = minibatches // learners, wanted * (learners if regime.remembers else 1)
    usual: int = getattr(kind, setting)
    period: int = strategy.setdefault(setting, max(1, min(usual, steps // enough)))
    if steps // period >= enough:
        return Fitted(period, usual)
    needs = f"{wanted} x {learners} learners" if regime.remembers else str(wanted)
    return Fitted(period, usual, f"{steps // period} blocks of {period} steps fit the budget, not {needs}")


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
