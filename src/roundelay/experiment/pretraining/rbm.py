"""A restricted Boltzmann machine, trained by one step of contrastive divergence.

Legend: N frames, V visible units, H hidden units.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Visible = Literal["gaussian", "bernoulli"]


class RBM(nn.Module):
    r"""Binary hidden units over visible ones that are Gaussian of unit variance, or binary.

    $E(v, h) = -h^T W v - b^T h + \frac{1}{2} |v - a|^2$, the last term $-a^T v$ where visible units are binary.
    Hinton, 2010, "A practical guide to training restricted Boltzmann machines"; the settings are Kaldi's.

    ``spread`` is no weight: its gradient brings the first two moments of data and reconstruction to the optimizer,
    which guards against an explosion by them (`roundelay.experiment.pretraining.rbm_momentum`), averaged or not as the
    strategy has it.
    """

    def __init__(self, visible: int, hidden: int, kind: Visible, *, deviation: float = 0.1) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(deviation * torch.randn(hidden, visible))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.visible_bias = nn.Parameter(torch.zeros(visible))
        self.spread = nn.Parameter(torch.zeros(4))

    def hidden(self, v: Tensor) -> Tensor:
        """Return how probable each hidden unit is, (N, H)."""
        return torch.sigmoid(torch.addmm(self.hidden_bias, v, self.weight.T))

    def visible(self, h: Tensor) -> Tensor:
        """Return the mean of each visible unit, (N, V)."""
        mean = torch.addmm(self.visible_bias, h, self.weight)
        return mean if self.kind == "gaussian" else torch.sigmoid(mean)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """Return the energy of each row, (N)."""
        own = 0.5 * (v - self.visible_bias).square().sum(1) if self.kind == "gaussian" else -(v @ self.visible_bias)
        return own - h @ self.hidden_bias - ((h @ self.weight) * v).sum(1)

    def start_visible(self, mean: Tensor) -> None:
        """Begin with the visible biases that give binary units this mean activation."""
        self.visible_bias.data.copy_(torch.logit(mean.to(self.visible_bias), eps=1e-4))

    @torch.no_grad()
    def contrast(self, v: Tensor) -> tuple[dict[str, Tensor], float]:
        """Return the statistics of data minus those of a reconstruction, per frame, and the mean squared error.

        Hidden units are sampled once, in between; visible units and the last hidden ones are left as probabilities.
        """
        h = self.hidden(v)
        back = self.visible((torch.rand_like(h) < h).to(h))  # torch.bernoulli raises for NaN; the loop names it
        again = self.hidden(back)
        statistics = {
            "weight": (h.T @ v - again.T @ back) / len(v),
            "hidden_bias": (h - again).mean(0),
            "visible_bias": (v - back).mean(0),
            "spread": torch.stack([v.mean(), v.square().mean(), back.mean(), back.square().mean()]),
        }
        return statistics, float((v - back).square().mean())

    def affine(self, mean: Tensor | None = None, deviation: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return weight and bias of the layer that it becomes, for inputs that are not normalised as its own were."""
        weight, bias = self.weight.detach().clone(), self.hidden_bias.detach().clone()
        if mean is not None and deviation is not None:
            weight /= deviation
            bias -= weight @ mean
        return weight, bias
