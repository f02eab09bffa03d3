"""Early stopping, around any schedule."""

from __future__ import annotations

import math

from roundelay.errors import SettingsError
from roundelay.optim.schedules import ScheduleBase
from roundelay.task import Scores

__all__ = ["EarlyStopping"]


class EarlyStopping(ScheduleBase):
    """Go by a schedule, and stop when evaluations have not improved for a while."""

    def __init__(self, schedule: ScheduleBase, patience: int, *, by: str = "loss", least: float = 0.0) -> None:
        self.schedule, self.patience, self.by, self.least = schedule, patience, by, least
        self._best, self._since = math.inf, 0

    def __call__(self, frames: float) -> float:
        """Return the schedule's factor."""
        return self.schedule(frames)

    def on_evaluation(self, scores: Scores) -> bool:
        """Count the evaluations since the best one; stop when patience ends, or when the schedule says so."""
        if self.by not in scores:
            raise SettingsError(f"keep.metric: no score {self.by!r}; there are {', '.join(sorted(scores))}")
        score = scores[self.by]
        improved = math.isinf(self._best) or score < self._best - self.least * abs(self._best)
        self._best, self._since = (score, 0) if improved else (self._best, self._since + 1)
        return self.schedule.on_evaluation(scores) or self._since >= self.patience

    def state(self) -> dict[str, float]:
        """Return the schedule's state, the best score and how long ago that was."""
        return {**self.schedule.state(), "patient_best": self._best, "patient_since": float(self._since)}

    def restore(self, state: dict[str, float]) -> None:
        """Take back what `state` gave."""
        self.schedule.restore(state)
        self._best, self._since = state["patient_best"], int(state["patient_since"])
