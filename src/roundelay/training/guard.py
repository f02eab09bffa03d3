"""The guard against numbers that are not finite: stop the run or skip the minibatch."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from roundelay.errors import NumericalError
from roundelay.task import Task
from roundelay.training.member import Member
from roundelay.training.training_settings import GuardSettings

logger = logging.getLogger(__name__)


@dataclass
class Guard:
    """Checks the loss and the gradient of each minibatch of one learner."""

    settings: GuardSettings
    skipped: int = 0
    """Minibatches in a row that were skipped, up to the last one."""

    @property
    def skips(self) -> bool:
        """Whether a minibatch is skipped rather than the run stopped."""
        return self.settings.nonfinite == "skip"

    def accepts(self, member: Member, task: Task, epoch: int, index: int, loss: float) -> bool:
        """Return whether a minibatch's gradient is used; if it is not finite, raise or return false.

        The gradient itself is checked only if it can be skipped: ``stop`` sees it in the next loss.
        """
        problem = "" if math.isfinite(loss) else f"the loss is {loss}"
        if not problem and self.skips and not math.isfinite(float(member.learner.grad.sum())):
            problem = "the gradient is not finite"
        if not problem:
            self.skipped = 0
            return True
        reason = f"{member.name}: {problem} at minibatch {index} of epoch {epoch}"
        if content := task.describe(epoch, index):
            reason += f" ({content})"
        if not self.skips:
            raise NumericalError(reason)
        self.skipped += 1
        if self.skipped > self.settings.max_skips:
            raise NumericalError(
                f"{reason}; {self.settings.max_skips} minibatches before it were skipped; try a lower learning rate"
            )
        logger.warning("%s; skipped", reason)
        member.write("skipped", epoch=epoch, index=index, reason=reason)
        return False


def is_finite(vector: Tensor) -> bool:
    """Return whether all numbers are finite; one sum is enough if they are."""
    return math.isfinite(float(vector.sum())) or bool(torch.isfinite(vector).all())


def check_finite(member: Member, vector: Tensor, subject: str) -> None:
    """Raise if weights are not finite."""
    if not is_finite(vector):
        raise NumericalError(f"{member.name}: {subject} has non-finite weights; try a lower learning rate")
