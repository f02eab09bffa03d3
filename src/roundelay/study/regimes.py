"""What each strategy needs for a fair comparison: enough blocks, and a rate that fits its gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from roundelay.strategies import find
from roundelay.strategy import period_setting


@dataclass(frozen=True)
class Regime:
    """The conditions under which a strategy works, by its papers."""

    blocks: bool = True
    """Whether a strategy with a period needs many of them in its budget."""
    has_memory: bool = False
    """Whether it has a memory of about N blocks: it then needs N times as many blocks."""
    gain: int = 1
    """Whether a step at rate r moves the model by the mean gradient (1), or in effect by N times as much (0)."""


REGIMES = {
    # The block momentum has a memory of about N blocks; its gain N compensates for the mean, at an unchanged rate.
    "bmuf": Regime(has_memory=True, gain=0),
    "diloco": Regime(has_memory=True, gain=0),
    "slowmo": Regime(has_memory=True, gain=0),
    # The centre moves by 0.9/N of the distance at each of N exchanges: it follows the mean, without memory.
    "easgd": Regime(),
    "easgd-synchronous": Regime(),
    "averaging": Regime(),
    # It mixes at each step, and averages over all besides; with many averages it would be synchronous SGD.
    "gossip-pga": Regime(blocks=False),
    # The server takes a full step for each gradient, or adds the changes of all learners.
    "asgd": Regime(gain=0),
    "asgd-updates": Regime(gain=0),
}
"""Other strategies take a step along the mean of all gradients, and have no memory of earlier blocks."""


@dataclass(frozen=True)
class Fitted:
    """How often a strategy communicates in a cell."""

    period: int | None = None
    """Steps in a block; ``None``: there are no blocks."""
    usual: int | None = None
    """The default of the strategy."""
    outside: str = ""
    """Why the period is outside the regime of its paper, or empty."""


def fit_period(strategy: dict[str, Any], *, minibatches: int, learners: int, wanted: int) -> Fitted:
    """Choose the period if none is given: the usual one, or the longest with enough blocks in the budget.

    Enough are ``wanted`` blocks, times the learners for a strategy with memory.
    """
    kind, regime = find(strategy["name"]), REGIMES.get(strategy["name"], Regime())
    setting = period_setting(kind) if regime.blocks else None
    if setting is None or learners == 1 or f"{setting}_frames" in strategy:
        return Fitted()
    steps, enough = minibatches // learners, wanted * (learners if regime.has_memory else 1)
    usual: int = getattr(kind, setting)
    period: int = strategy.setdefault(setting, max(1, min(usual, steps // enough)))
    if steps // period >= enough:
        return Fitted(period, usual)
    needs = f"{wanted} x {learners} learners" if regime.has_memory else str(wanted)
    return Fitted(period, usual, f"{steps // period} blocks of {period} steps in the budget; {needs} are needed")


def scaling(strategy: str, *, common_batch: bool) -> float:
    """Return the power of the number of learners with which a rate grows, so that steps add up as for one learner.

    If a minibatch is divided among the learners (``common_batch``), the mean of their gradients equals the gradient of
    one learner, and only a strategy with its own gain needs another rate.
    """
    return REGIMES.get(strategy, Regime()).gain - (1.0 if common_batch else 0.0)


def scaled(rate: float, learners: int, power: float) -> float:
    """Return the rate for this number of learners, rounded to six digits."""
    return float(f"{rate * learners**power:.6g}")


def nodes_for(learners: int) -> int:
    """Return the size of nodes for a hierarchy if the cluster has none: the divisor next to the square root."""
    return next(size for size in range(math.isqrt(learners), 0, -1) if learners % size == 0)
