"""Try a run again from its last checkpoint: after weights that are not finite, and after the loss of all learners."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from roundelay.errors import CommunicationError, Deadlock, Mismatch, NumericalError
from roundelay.training.checkpoint_files import Checkpoints
from roundelay.training.training_settings import GuardSettings

T = TypeVar("T")
logger = logging.getLogger(__name__)


def run_with_retries(
    attempt: Callable[[float], T], run: Path | None, guard: GuardSettings | None, *, restarts: int = 0
) -> T:
    """Try until it succeeds; after a failure, try again from the last checkpoint if ``guard`` or ``restarts`` allow it.

    ``attempt`` is given a factor of the learning rate, on top of the factor that the checkpoint has.
    """
    guard = guard or GuardSettings()
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
