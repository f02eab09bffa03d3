"""What each strategy needs for a fair comparison: enough blocks, and a rate that fits its gain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from roundelay.optim.default_rules import RULES, DefaultRule
from roundelay.strategies import find
from roundelay.strategy import period_setting

PLAIN = DefaultRule("a step along the mean of all gradients, without memory of earlier blocks")
"""For a strategy without a default rule."""


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
    kind, rule = find(strategy["name"]), RULES.get(strategy["name"], PLAIN)
    setting = period_setting(kind) if rule.blocks else None
    if setting is None or learners == 1 or f"{setting}_frames" in strategy:
        return Fitted()
    steps, enough = minibatches // learners, wanted * (learners if rule.has_memory else 1)
    usual: int = getattr(kind, setting)
    period: int = strategy.setdefault(setting, max(1, min(usual, steps // enough)))
    if steps // period >= enough:
        return Fitted(period, usual)
    needs = f"{wanted} x {learners} learners" if rule.has_memory else str(wanted)
    return Fitted(period, usual, f"{steps // period} blocks of {period} steps in the budget; {needs} are needed")


def scaling(strategy: str, *, common_batch: bool) -> float:
    """Return the power of the number of learners with which a rate grows, so that steps add up as for one learner.

    If a minibatch is divided among the learners (``common_batch``), the mean of their gradients equals the gradient of
    one learner, and only a strategy with its own gain needs another rate.
    """
    return RULES.get(strategy, PLAIN).gain - (1.0 if common_batch else 0.0)


def scaled(rate: float, learners: int, power: float) -> float:
    """Return the rate for this number of learners, rounded to six digits."""
    return float(f"{rate * learners**power:.6g}")


def nodes_for(learners: int) -> int:
    """Return the size of nodes for a hierarchy if the cluster has none: the divisor next to the square root."""
    return next(size for size in range(math.isqrt(learners), 0, -1) if learners % size == 0)
