"""How every runtime computes a mean, so that they agree to the bit: sum(w x) in rank order, then one division."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def scale(x: Tensor, weight: float) -> Tensor:
    """Return ``weight * x``: ``x`` itself for weight 1, and zeros for weight 0 even if ``x`` is not finite."""
    if weight == 1.0:
        return x
    return x * weight if weight else torch.zeros_like(x)


def divide(total: Tensor, weight: float) -> Tensor:
    """Divide a sum of scaled tensors by the sum of their weights, in place."""
    return total if weight == 1.0 else total.div_(weight)


def mean_of(xs: Sequence[Tensor], weights: Sequence[float]) -> Tensor | None:
    """Return the weighted mean of ``xs`` in a new tensor; ``None`` if all weights are 0."""
    if not any(weights):
        return None
    if len(xs) == 1:
        return xs[0].clone()
    total = scale(xs[0], weights[0]) + scale(xs[1], weights[1])
    for x, weight in zip(xs[2:], weights[2:], strict=True):
        total.add_(scale(x, weight))
    return divide(total, sum(weights))
