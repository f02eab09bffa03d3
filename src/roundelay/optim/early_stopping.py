"""Early stopping, around any schedule."""

from __future__ import annotations

import math

from roundelay.errors import SettingsError
from roundelay.optim.schedules import ScheduleBase
from roundelay.task import Scores


class EarlyStopping(ScheduleBase):
    """A schedule that also stops after ``patience`` evaluations without an improvement.

    ``min_improvement`` is relative to the best value of ``metric`` so far.
    """

    def __init__(
        self, schedule: ScheduleBase, patience: int, *, metric: str = "loss", min_improvement: float = 0.0
    ) -> None:
        self.schedule, self.patience, self.metric, self.min_improvement = schedule, patience, metric, min_improvement
        self._best, self._since = math.inf, 0

    def __call__(self, frames: float) -> float:
        """Return the schedule's factor."""
        return self.schedule(frames)

    def on_evaluation(self, scores: Scores) -> bool:
        """Count the evaluations since the best; return whether these reach ``patience``, or the schedule stops."""
        if self.metric not in scores:
            raise SettingsError(f"keep.metric: no score {self.metric!r}; there are {', '.join(sorted(scores))}")
        score = scores[self.metric]
        improved = math.isinf(self._best) or score < self._best - self.min_improvement * abs(self._best)
        self._best, self._since = (score, 0) if improved else (self._best, self._since + 1)
        return self.schedule.on_evaluation(scores) or self._since >= self.patience

    def state(self) -> dict[str, float]:
        """Return the schedule's state, the best score, and the number of evaluations since."""
        return {**self.schedule.state(), "patient_best": self._best, "patient_since": float(self._since)}

    def restore(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""
        self.schedule.restore(state)
        self._best, self._since = state["patient_best"], int(state["patient_since"])
