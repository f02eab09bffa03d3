"""The settings of training: checkpoints, the guard against non-finite numbers, and which model a run leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roundelay.errors import SettingsError

__all__ = ["CheckpointSettings", "GuardSettings", "KeepSettings"]


@dataclass(frozen=True)
class CheckpointSettings:
    """How often the state of all learners is saved; by default at evaluations, if five minutes have passed."""

    every_frames: int | None = None
    """Synchronize and save every so many frames of the whole run, rounded down to whole minibatches."""
    every_minutes: float | None = None
    """Synchronize and save about every so many minutes; the position is predicted from the speed so far."""
    keep: int = 3
    """Number of checkpoints to keep, the newest."""
    retry_minutes: float = 0.0
    """How long to try again if a checkpoint cannot be written; training may pause meanwhile, then the run stops."""

    def __post_init__(self) -> None:
        if self.every_frames is not None and self.every_minutes is not None:
            raise SettingsError("checkpoint.every_frames and checkpoint.every_minutes are both given; use one of them")
        for name in ("every_frames", "every_minutes"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise SettingsError(f"checkpoint.{name} must be above 0, not {value}")
        if self.keep < 1:
            raise SettingsError(f"checkpoint.keep must be at least 1, not {self.keep}")
        if self.retry_minutes < 0:
            raise SettingsError(f"checkpoint.retry_minutes must be at least 0, not {self.retry_minutes}")


@dataclass(frozen=True)
class GuardSettings:
    """What to do about a loss, a gradient or weights that are not finite."""

    nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """``skip`` leaves the minibatch out; ``rollback`` returns to the last checkpoint, with a lower rate."""
    max_skips: int = 10
    """The largest number of minibatches in a row that one learner skips; one more is an error."""
    lr_factor: float = 0.5
    """The factor of the learning rate at each rollback."""
    max_rollbacks: int = 5
    """The largest number of rollbacks; one more is an error."""

    def __post_init__(self) -> None:
        if not 0 < self.lr_factor <= 1:
            raise SettingsError(f"guard.lr_factor must be above 0 and at most 1, not {self.lr_factor}")
        for name in ("max_skips", "max_rollbacks"):
            if getattr(self, name) < 1:
                raise SettingsError(f"guard.{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class KeepSettings:
    """Which model a run leaves, and when it stops early; both depend on evaluations on held-out minibatches."""

    model: Literal["last", "best", "average"] = "last"
    num_models: int = 4
    """Number of evaluations that ``average`` takes the mean of."""
    metric: str = "loss"
    """The score to compare models by; less is better."""
    patience: int | None = None
    """Stop after so many evaluations in a row that did not improve the best; by default never."""
    min_improvement: float = 0.0
    """An improvement is by more than this share of the best."""

    def __post_init__(self) -> None:
        if self.num_models < 1:
            raise SettingsError(f"num_models must be at least 1, not {self.num_models}")
        if self.patience is not None and self.patience < 1:
            raise SettingsError(f"patience must be at least 1, not {self.patience}")
