"""The settings of training: checkpoints, the guard against non-finite numbers, and which model a run leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from roundelay.config import Count, Positive, Seconds, Settings, Share


@dataclass(frozen=True)
class CheckpointSettings(Settings):
    """How often the state of all learners is saved; by default at evaluations, if five minutes have passed."""

    exclusive: ClassVar[tuple[str, ...]] = ("every_frames", "every_minutes")

    every_frames: Count | None = None
    """Synchronize and save every so many frames of the whole run, rounded down to whole minibatches."""
    every_minutes: Positive | None = None
    """Synchronize and save about every so many minutes; the position is predicted from the speed so far."""
    keep: Count = 3
    """Number of checkpoints to keep, the newest."""
    retry_minutes: Seconds = 0.0
    """How long to try again if a checkpoint cannot be written; training may pause meanwhile, then the run stops."""


@dataclass(frozen=True)
class GuardSettings(Settings):
    """What to do about a loss, a gradient or weights that are not finite."""

    nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """``skip`` leaves the minibatch out; ``rollback`` returns to the last checkpoint, with a lower rate."""
    max_skips: Count = 10
    """The largest number of minibatches in a row that one learner skips; one more is an error."""
    lr_factor: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """The factor of the learning rate at each rollback."""
    max_rollbacks: Count = 5
    """The largest number of rollbacks; one more is an error."""


@dataclass(frozen=True)
class KeepSettings(Settings):
    """Which model a run leaves, and when it stops early; both depend on evaluations on held-out minibatches."""

    model: Literal["last", "best", "average"] = "last"
    num_models: Count = 4
    """Number of evaluations that ``average`` takes the mean of."""
    metric: str = "loss"
    """The score to compare models by; less is better."""
    patience: Count | None = None
    """Stop after so many evaluations in a row that did not improve the best; by default never."""
    min_improvement: Share = 0.0
    """An improvement is by more than this share of the best."""
