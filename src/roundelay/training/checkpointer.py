"""When the state of all learners is saved, and where they synchronize for that."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from roundelay.training.budget import Agenda, SyncInterval
from roundelay.training.checkpoint_files import FOLDER, Checkpoints, ReadableParts, Saver
from roundelay.training.guard import check_finite
from roundelay.training.member import Member
from roundelay.training.rank_state import RankState
from roundelay.training.training_settings import CheckpointSettings

FIRST_ROUNDS = 8  # until the speed is known, if checkpoints depend on minutes
MAX_GROWTH = 8  # the next checkpoint is predicted at most this many times the last interval ahead


@dataclass
class Checkpointer:
    """Decides on checkpoints together with all ranks, and saves this rank's part.

    ``settings`` say when; without them only a user loop saves.  Without ``saver``, checkpoints are decided on and
    recorded, but not written.
    """

    settings: CheckpointSettings | None = None
    saver: Saver | None = None
    attempt: int = 0
    """How often the run was resumed."""
    last_saved: float = 0.0
    """Time of the last checkpoint, by the run's clock."""
    interval_started: float = 0.0

    async def decide(self, member: Member, agenda: Agenda, interval: SyncInterval) -> bool:
        """Agree whether to save at the end of ``interval``, and, if minutes count, where to synchronize next.

        When it returns, all ranks are here and the last checkpoint is on every disk: do not await anything between this
        call and `save`.
        """
        settings, world = self.settings, member.world
        if settings is None:
            return False
        self.wait()
        now = member.runtime.now()
        due = interval.checkpoint
        if settings.every_minutes is not None:
            due = now - self.last_saved >= 60.0 * settings.every_minutes
        elif settings.every_frames is None:
            due = self.saver is not None and self.saver.due()
        predicted = 0
        if settings.every_minutes is not None:
            left = 60.0 * settings.every_minutes - (0.0 if due else now - self.last_saved)
            predicted = self._predict_checkpoint(member, interval, now, left)
        told = torch.tensor([float(due), predicted], dtype=torch.float64)
        await world.mean(told, weight=float(world.rank == 0))
        if not agenda.done and 0 < told[1] < agenda.current.end:
            agenda.add_sync_point(int(told[1]))
        if bool(told[0]):
            self.last_saved = now
        return bool(told[0])

    def save(self, member: Member, position: int, capture: Callable[[int], RankState]) -> None:
        """Copy all state, and start to write it while training continues."""
        check_finite(member, member.learner.weights, f"after minibatch {position} it")
        if member.world.rank == 0:
            member.write("checkpoint", minibatch=position)
        if self.saver is not None:
            state = capture(position)
            state.attempt = self.attempt
            self.saver.submit(state)

    def _predict_checkpoint(self, member: Member, interval: SyncInterval, now: float, seconds: float) -> int:
        """Return where the run is after so many ``seconds``, by the speed in this interval."""
        minibatches = interval.end - interval.begin
        speed = minibatches / max(1e-9, now - self.interval_started)
        ahead = min(speed * seconds, MAX_GROWTH * minibatches)
        return interval.end + max(1, math.ceil(ahead / member.num_learners)) * member.num_learners

    def add_first_sync_point(self, member: Member, agenda: Agenda, position: int) -> None:
        """If checkpoints depend on minutes, synchronize soon after ``position``, to measure the speed."""
        if self.settings is not None and self.settings.every_minutes is not None and not agenda.done:
            point = position + FIRST_ROUNDS * member.num_learners
            if point < agenda.current.end:
                agenda.add_sync_point(point)

    def start_interval(self, now: float, *, resumed: bool = False) -> None:
        """Measure the speed from ``now`` on; if the run was ``resumed``, it also counts as the last checkpoint."""
        self.interval_started = now
        if resumed:
            self.last_saved = now

    def start_fresh(self, member: Member, agenda: Agenda) -> None:
        """Start at the beginning, and remove what a run without a complete checkpoint has left."""
        self.add_first_sync_point(member, agenda, 0)
        if self.saver is None:
            return
        if member.runtime.clock == "wall" or member.world.rank == 0:  # a simulated cluster has one record
            member.runtime.record.restart()
        if member.world.rank == 0 and self.has_files:
            self.checkpoints.clean(None)

    def adopt(self, attempt: int) -> None:
        """Count so many resumptions, as the other ranks do."""
        self.attempt = attempt

    @property
    def checkpoints(self) -> Checkpoints:
        """The files; only if there is a saver."""
        assert self.saver is not None
        return self.saver.checkpoints

    @property
    def has_files(self) -> bool:
        """Whether the run has saved anything yet."""
        return self.saver is not None and (self.saver.run / FOLDER).is_dir()

    def readable_parts(self, member: Member) -> ReadableParts | None:
        """Return the parts of checkpoints that this process can read, if there are any files."""
        if not self.has_files:
            return None
        return self.checkpoints.readable_parts(member.runtime.initial_rank, member.runtime.initial_size)

    def check(self) -> None:
        """Raise the error of a write that has failed, without waiting."""
        if self.saver is not None:
            self.saver.check()

    def wait(self) -> None:
        """Wait until all is written."""
        if self.saver is not None:
            self.saver.wait()
