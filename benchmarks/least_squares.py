"""Fit a few positive numbers of a cluster by least squares, with the simulator as the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from roundelay.errors import DataError

__all__ = ["fit"]

STEP = 1e-3  # of a logarithm, for the derivatives
ROUNDS = 60
FLOOR = 1e-9  # of a start value; smaller values count as zero


def fit(
    predict: Callable[[Mapping[str, float]], Sequence[float]], measured: Sequence[float], start: Mapping[str, float]
) -> dict[str, float]:
    """Return the positive numbers for which ``predict`` is closest to ``measured``, in relative error.

    Levenberg and Marquardt's method on the logarithms of the numbers, from ``start``.
    """
    if len(measured) < len(start):
        raise DataError(f"{len(measured)} measurements cannot determine {len(start)} numbers: {', '.join(start)}")
    names, at = list(start), torch.tensor([math.log(value) for value in start.values()], dtype=torch.float64)
    lowest = at + math.log(FLOOR)

    def residuals(logs: torch.Tensor) -> torch.Tensor:
        found = predict(dict(zip(names, logs.exp().tolist(), strict=True)))
        pairs = zip(found, measured, strict=True)
        return torch.tensor([guess / truth - 1.0 for guess, truth in pairs], dtype=torch.float64)

    now, damping = residuals(at), 1e-3
    for _ in range(ROUNDS):
        steps = torch.eye(len(names), dtype=torch.float64) * STEP
        slopes = torch.stack([(residuals(at + step) - now) / STEP for step in steps], dim=1)
        square = slopes.T @ slopes
        scale = square + damping * torch.diag(square.diagonal() + 1e-12)
        better = torch.maximum(at - torch.linalg.solve(scale, slopes.T @ now).clamp(-2.0, 2.0), lowest)
        then = residuals(better)
        if then.square().sum() < now.square().sum():
            done = float(now.square().sum() - then.square().sum()) < 1e-12
            at, now, damping = better, then, damping / 5
            if done:
                break
        else:
            damping *= 5
            if damping > 1e8:
                break
    return dict(zip(names, at.exp().tolist(), strict=True))
