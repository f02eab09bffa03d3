"""What a tracker of experiments is told of a run that is followed: numbers by frames, so that all runs compare."""

from __future__ import annotations

import math

from roundelay.runs.follower import Follower

NOT_SCORES = {"event", "member", "clock", "time", "minibatch", "epoch", "frames"}
STRIDE_FRAMES = 2000  # between two points of the loss


class MetricLogs:
    """The numbers of a run; a tracker's own class says where they go."""

    def __init__(self) -> None:
        self._steps = self._scores = 0
        self._sum, self._count, self._next = 0.0, 0, STRIDE_FRAMES

    def add(self, name: str, value: float, frames: int) -> None:
        """Add a number after so many frames."""
        raise NotImplementedError

    def flush(self) -> None:
        """Let all that was added be seen."""

    def close(self) -> None:
        """Finish."""

    def write(self, follower: Follower) -> None:
        """Add what is new: the loss, the scores, the speed and the frames of each learner."""
        if follower.steps < self._steps:
            self._steps = follower.steps  # the learners' records were merged
        for frames, loss in follower.losses[self._steps :]:
            if math.isfinite(loss):
                self._sum, self._count = self._sum + loss, self._count + 1
            if frames >= self._next and self._count:
                self.add("loss", self._sum / self._count, int(frames))
                self._sum, self._count, self._next = 0.0, 0, int(frames) + STRIDE_FRAMES
        for event in follower.scores[self._scores :]:
            for name, value in event.items():
                if name not in NOT_SCORES and isinstance(value, int | float):
                    self.add(f"held out/{name}", value, int(event["frames"]))
            self.add(f"seconds ({event.get('clock', '')})", event["time"], int(event["frames"]))
        if follower.steps > self._steps:
            self.add("frames per second", follower.speed, int(follower.frames))
            for member, learner in follower.learners.items():
                self.add(f"frames of/{member}", learner.frames, int(follower.frames))
        self._steps, self._scores = follower.steps, len(follower.scores)
        self.flush()
