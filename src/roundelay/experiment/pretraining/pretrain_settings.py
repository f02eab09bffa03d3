"""The settings of pre-training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from roundelay.config import Count, NonNegative, Positive, Settings
from roundelay.experiment.pretraining.rbm_momentum import MomentumRamp


@dataclass(frozen=True)
class PretrainSettings(Settings):
    """How to pre-train; the values are those of Kaldi's ``pretrain_dbn.sh``, the minibatch is the experiment's."""

    kind: Literal["rbm", "layerwise"] = "rbm"
    layers: Count | None = None
    """Hidden layers to pre-train, from the first; by default all, and all but the last one by ``layerwise``."""
    epochs: Positive = 1.0
    """Of each layer."""
    first_epochs: Positive | None = None
    """Of the first layer; by default twice ``epochs`` for a Gaussian RBM, and ``epochs`` otherwise."""
    rate: Positive | None = None
    """By default 0.4 for an RBM, and the experiment's own by ``layerwise``."""
    first_rate: Positive | None = None
    """Of the first layer; by default 0.01 for a Gaussian RBM, and ``rate`` otherwise."""
    momentum: MomentumRamp = field(default_factory=MomentumRamp)
    """Of RBMs only: the next two as well."""
    l2: NonNegative = 2e-4
    deviation: NonNegative = 0.1
    """Of an RBM's first weights."""
    weights: str | None = None
    """A file pre-trained before, ``pretrain/model.safetensors`` of another run, to take in place of all that."""
    normalise: bool = True
    """Train the first RBM on inputs of zero mean and unit variance, and fold that into its layer afterwards."""

    def epochs_of(self, stage: int) -> float:
        """Return the epochs of a stage, from 0."""
        if stage:
            return self.epochs
        return self.first_epochs or self.epochs * (2 if self.kind == "rbm" else 1)

    def rate_of(self, stage: int) -> float | None:
        """Return the learning rate of a stage; ``None``: the experiment's."""
        if self.kind == "layerwise":
            return (self.first_rate or self.rate) if stage == 0 else self.rate
        return (self.first_rate or 0.01) if stage == 0 else (self.rate or 0.4)
