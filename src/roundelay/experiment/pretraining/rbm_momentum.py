"""The optimizer of restricted Boltzmann machines: momentum that grows, and a guard against an explosion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundelay.errors import SettingsError
from roundelay.experiment.pretraining.rbm import RBM
from roundelay.task import Scores


@dataclass(frozen=True)
class MomentumRamp:
    """Momentum from ``first`` to ``last`` in ``steps`` of ``step_frames`` each; the rate is 1 minus it."""

    first: float = 0.5
    last: float = 0.9
    steps: int = 40
    step_frames: float = 500_000

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < 1:
            raise SettingsError(f"momentum must go from at least 0 to less than 1, not {self.first} to {self.last}")
        if self.steps < 1 or self.step_frames <= 0:
            raise SettingsError(f"at least 1 step of more than 0 frames, not {self.steps} of {self.step_frames}")

    def __call__(self, frames: float) -> float:
        """Return 1 minus the momentum, by which Kaldi multiplies the rate."""
        step = min(self.steps, int(frames / self.step_frames))
        return 1.0 - (self.first + (self.last - self.first) * step / self.steps)

    def on_evaluation(self, scores: Scores) -> bool:
        """Never stop early."""
        return False


class GuardedMomentum(torch.optim.Optimizer):
    r"""$\Delta \gets m \Delta + \gamma (s - \lambda W)$ and $W \gets W + \Delta$ along the statistics $s$ of an RBM.

    The momentum $m$ is 1 minus the factor of the learning rate that a `MomentumRamp` sets.

    Where the reconstruction of Gaussian units spreads more than twice as far as the data, weights and biases shrink by
    the ratio, the momentum is forgotten, the rate falls to nine tenths (until the ramp's next step), and no step is
    taken.  So the guard acts on whatever the strategy hands it: averaged statistics in `synchronous`, a learner's own
    where learners descend by themselves, and on a server each learner's as they come; not where servers hold shards.
    """

    def __init__(self, rbm: RBM, lr: float, *, l2: float = 2e-4, ratio: float = 2.0) -> None:
        groups: list[dict[str, Any]] = [
            {"params": [rbm.weight], "l2": l2},
            {"params": [rbm.hidden_bias, rbm.visible_bias, rbm.spread], "l2": 0.0},
        ]
        super().__init__(groups, {"lr": lr})
        self._spread, self._ratio, self._guards = rbm.spread, ratio, rbm.kind == "gaussian"
        self.note: Callable[[str, float], None] | None = None  # where to record that the guard has acted
        for group in self.param_groups:
            group["base"], group["shrunk"], group["factor"], group["guarded"] = lr, 1.0, 1.0, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's has overloads
        """Take a step, or shrink instead."""
        for group in self.param_groups:
            factor = group["lr"] / group["base"] if group["base"] else 1.0
            if factor != group["factor"]:
                group["factor"], group["shrunk"] = factor, 1.0
        weights = [(group, p) for group in self.param_groups for p in group["params"] if p is not self._spread]
        if self._explodes([p for _, p in weights]):
            return
        for group, p in weights:
            if p.grad is None:
                continue
            state = self.state[p]
            change = state.setdefault("change", torch.zeros_like(p))
            rate = group["lr"] * group["shrunk"]
            change.mul_(1.0 - group["factor"]).add_(p.grad, alpha=-rate).add_(p, alpha=-rate * group["l2"])
            p.add_(change)

    def _explodes(self, weights: list[Tensor]) -> bool:
        moments = self._spread.grad
        if not self._guards or moments is None or any(p.grad is None for p in weights):
            return False
        mean, square, back, back_square = (-float(moment) for moment in moments)  # a gradient is minus the statistics
        data, reconstruction = (max(0.0, b - a * a) ** 0.5 for a, b in ((mean, square), (back, back_square)))
        if not reconstruction > self._ratio * data or data == 0.0:
            return False
        for p in weights:
            p.mul_(data / reconstruction)
            if "change" in self.state[p]:
                self.state[p]["change"].zero_()
        for group in self.param_groups:
            group["shrunk"] *= 0.9
            group["guarded"] += 1
        if self.note is not None:
            self.note("guarded", reconstruction / data)
        return True
