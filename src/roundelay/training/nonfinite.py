"""What happens when numbers stop being numbers, and when an attempt at a run fails: stop, skip, roll back, resume."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from roundelay.errors import CommunicationError, Deadlock, Mismatch, NumericalError, SettingsError
from roundelay.training.checkpoint_files import Checkpoints

if TYPE_CHECKING:
    from roundelay.training.loop import Training

__all__ = ["GuardSettings", "check_gradient", "persist"]

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GuardSettings:
    """What to do about a loss, a gradient or weights that are not finite."""

    nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """``skip`` leaves the minibatch out; ``rollback`` goes back to the last checkpoint, with a lower rate."""
    max_skips: int = 10
    """So many minibatches in a row may be skipped by one learner; then it is an error."""
    lr_factor: float = 0.5
    """The factor of the learning rate at each rollback."""
    max_rollbacks: int = 5
    """After so many of them it is an error."""

    def __post_init__(self) -> None:
        if not 0 < self.lr_factor <= 1:
            raise SettingsError(f"guard.lr_factor must be above 0 and at most 1, not {self.lr_factor}")
        for name in ("max_skips", "max_rollbacks"):
            if getattr(self, name) < 1:
                raise SettingsError(f"guard.{name} must be at least 1, not {getattr(self, name)}")


def check_gradient(training: Training, epoch: int, index: int, loss: float) -> bool:
    """Tell whether a minibatch's gradient may be used; where it is not finite, raise or skip as the guard says.

    The gradient itself is looked at only where it can be skipped: ``stop`` sees it in the next loss.
    """
    guard, learner = training.guard, training.learner
    skipping = guard is not None and guard.nonfinite == "skip"
    what = f"the loss is {loss}"
    fine = math.isfinite(loss)
    if fine and skipping and not math.isfinite(float(learner.grad.sum())):
        fine, what = False, "the gradient is not finite"
    if fine:
        training.skipped = 0
        return True
    where = training.task.describe(epoch, index)
    what = f"{training.member}: {what} at minibatch {index} of epoch {epoch}" + (f" ({where})" if where else "")
    if guard is None or not skipping:
        raise NumericalError(what)
    training.skipped += 1
    if training.skipped > guard.max_skips:
        raise NumericalError(
            f"{what}; {guard.max_skips} minibatches before it were skipped, a lower learning rate may do"
        )
    logger.warning("%s; skipped", what)
    training.runtime.record.write(
        "skipped", training.member, training.runtime.now(), epoch=epoch, index=index, reason=what
    )
    return False


def persist(attempt: Callable[[float], T], run: Path | None, guard: GuardSettings, *, restarts: int = 0) -> T:
    """Try until it succeeds: again from the last checkpoint where the guard or ``restarts`` say so.

    ``attempt`` is given the factor of the learning rate, on top of the checkpoint's.
    """
    failures, rollbacks, newest = 0, 0, -1
    while True:
        try:
            return attempt(guard.lr_factor**failures)
        except NumericalError as error:
            if guard.nonfinite != "rollback" or rollbacks == guard.max_rollbacks:
                raise
            now = max(Checkpoints(run).positions(), default=0) if run is not None else 0
            failures, newest, rollbacks = (failures + 1 if now == newest else 1), now, rollbacks + 1
            logger.warning("%s; rolling back to minibatch %d, at %g of its rate", error, now, guard.lr_factor**failures)
        except (Deadlock, Mismatch):
            raise
        except CommunicationError as error:
            if restarts == 0:
                raise
            restarts -= 1
            logger.warning("%s; resuming, %d more times if need be", error, restarts)
