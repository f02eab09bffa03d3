"""Learning-rate schedules by frames of the whole run: they do not depend on the number of learners."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from roundelay.config import NonNegative, Positive, Settings, Share
from roundelay.plugins import Registry
from roundelay.task import Scores


class ScheduleBase(Settings):
    """A factor of the learning rate; its settings are the fields of a dataclass."""

    registry: ClassVar[Registry[ScheduleBase]]

    def __call__(self, frames: float) -> float:
        """Return the factor after ``frames`` frames of the whole run."""
        raise NotImplementedError

    def on_evaluation(self, scores: Scores) -> bool:
        """Use the scores of an evaluation; return whether training should stop."""
        return False

    def state(self) -> dict[str, float]:
        """Return the state that `on_evaluation` changes."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""


@dataclass
class Constant(ScheduleBase):
    """A constant learning rate."""

    def __call__(self, frames: float) -> float:
        """Return 1."""
        return 1.0


@dataclass
class ExponentialDecay(ScheduleBase):
    """From 1 to ``final`` over ``frames``, then constant."""

    frames: Positive
    final: Positive = 0.01

    def __call__(self, frames: float) -> float:
        """Return ``final`` to the power of the fraction of the frames."""
        return float(self.final ** min(1.0, frames / self.frames))


@dataclass
class WarmupAnneal(ScheduleBase):
    """IBM's recipe: from ``first`` to 1 over ``warmup_frames``, then times ``factor`` after every ``every_frames``."""

    warmup_frames: NonNegative
    every_frames: Positive
    first: NonNegative = 0.1
    factor: Annotated[float, Meta(gt=0, le=1)] = 0.5**0.5

    def __call__(self, frames: float) -> float:
        """Return the factor; it falls in steps after the warm-up."""
        if frames < self.warmup_frames:
            return self.first + (1.0 - self.first) * frames / self.warmup_frames
        return float(self.factor ** int((frames - self.warmup_frames) / self.every_frames))


@dataclass
class Newbob(ScheduleBase):
    """Halve if the held-out loss improves by less than ``halve_below`` (relative); stop below ``stop_below``.

    After the first small improvement the rate is halved at every evaluation.
    """

    halve_below: Share = 0.01
    stop_below: Share = 0.001
    factor: Annotated[float, Meta(gt=0, lt=1)] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._now, self._best, self._halving = 1.0, math.inf, False

    def __call__(self, frames: float) -> float:
        """Return the factor that the evaluations so far have set."""
        return self._now

    def on_evaluation(self, scores: Scores) -> bool:
        """Halve or stop, depending on the relative improvement of the loss."""
        loss = scores["loss"]
        gain = 1.0 if math.isinf(self._best) else (self._best - loss) / abs(self._best)
        self._best = min(self._best, loss)
        if self._halving and gain < self.stop_below:
            return True
        self._halving = self._halving or gain < self.halve_below
        if self._halving:
            self._now *= self.factor
        return False

    def state(self) -> dict[str, float]:
        """Return the factor, the best loss, and whether halving has begun."""
        return {"now": self._now, "best": self._best, "halving": float(self._halving)}

    def restore(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""
        self._now, self._best, self._halving = state["now"], state["best"], bool(state["halving"])


SCHEDULES: dict[str, type[ScheduleBase]] = {
    "constant": Constant,
    "exponential": ExponentialDecay,
    "newbob": Newbob,
    "warmup-anneal": WarmupAnneal,
}
"""By the name that an experiment gives."""
ScheduleBase.registry = Registry(ScheduleBase, SCHEDULES)
