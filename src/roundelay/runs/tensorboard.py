"""Logs for TensorBoard of a run that is followed, by frames, so that runs of many and few learners compare."""

from __future__ import annotations

import math
from pathlib import Path

from roundelay.errors import MissingExtra
from roundelay.runs.follower import Follower

NOT_SCORES = {"event", "member", "clock", "time", "minibatch", "epoch", "frames"}
STRIDE_FRAMES = 2000  # between two points of the loss


class Logs:
    """Event files in a folder; `write` adds the new events."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard") from None
        self._writer = SummaryWriter(str(folder))
        self._steps = self._scores = 0
        self._sum, self._count, self._next = 0.0, 0, STRIDE_FRAMES

    def write(self, follower: Follower) -> None:
        """Write the loss, the scores, the speed and the frames of each learner."""
        if follower.steps < self._steps:
            self._steps = follower.steps  # the learners' records were merged
        for frames, loss in follower.losses[self._steps :]:
            if math.isfinite(loss):
                self._sum, self._count = self._sum + loss, self._count + 1
            if frames >= self._next and self._count:
                self._writer.add_scalar("loss", self._sum / self._count, int(frames))
                self._sum, self._count, self._next = 0.0, 0, int(frames) + STRIDE_FRAMES
        for event in follower.scores[self._scores :]:
            for name, value in event.items():
                if name not in NOT_SCORES and isinstance(value, int | float):
                    self._writer.add_scalar(f"held out/{name}", value, int(event["frames"]))
            self._writer.add_scalar(f"seconds ({event.get('clock', '')})", event["time"], int(event["frames"]))
        if follower.steps > self._steps:
            self._writer.add_scalar("frames per second", follower.speed, int(follower.frames))
            for member, learner in follower.learners.items():
                self._writer.add_scalar(f"frames of/{member}", learner.frames, int(follower.frames))
        self._steps, self._scores = follower.steps, len(follower.scores)
        self._writer.flush()

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()
