"""What the learners of a user loop do together, counted: who has come to its end takes part in what others still do.

A user loop decides when it takes a step, and learners may take different numbers of them.  Each learner writes how many
acts it has done where all see it.  So a learner at its end can follow the others without knowing how many are left.
"""

from __future__ import annotations

import time
from typing import Literal

from roundelay.errors import SettingsError
from roundelay.training.budget import Agenda
from roundelay.training.member import Member
from roundelay.user_loop.act_board import Board, Done, SharedWords, StoreBoard

Act = Literal["step", "mean"]
"""A step; or the mean gradient, which some strategies take at the end of each backward pass."""

POLL_SECONDS = 0.002
SOON_SECONDS = 0.00005


class Acts:
    """Our acts since all learners last began, and how to see those of the others.

    Entries into the consensus and ends of loops are counted by themselves, for all learners.
    """

    def __init__(self, member: Member, agenda: Agenda) -> None:
        self._member, self._agenda = member, agenda
        self.words: SharedWords | None = None
        """Where learners of one host write their acts, if that is possible."""
        self.begin()

    def begin(self) -> None:
        """Count from 0; all learners do so at the same point."""
        member, index = self._member, self._member.learner.index
        groups = member.active_strategy.lockstep_groups(member.num_learners)
        group = next(group for group in groups if index in group)
        self._others = [other for other in group if other != index]
        loop = self._agenda.interval_index
        self._board: Board = self.words.board(loop) if self.words is not None else StoreBoard(member, loop)
        self._prefix = f"acts {loop}"
        self._done, self._entered = Done(), 0
        self._means = 0  # of the current step
        self.accumulates = False
        """Whether a step had several means: then learners may differ in how many."""

    async def announce(self, act: Act, *, idle: bool = False) -> None:
        """Tell those who step with us that we begin ``act``; ``idle``: without a minibatch, as another has begun it."""
        if not self._others:
            return
        steps, means, waiting = self._done
        if act == "step":
            waits = self.accumulates or (idle and any(each.waiting for each in await self._board.read(self._others)))
            self._done, self._means = Done(steps + 1, means, waits), 0
        else:
            self._done = Done(steps, means + 1, waiting)
            self._means += 1
            if self._means > 1:
                self.accumulates = True
                await self._check_means(steps)
        await self._board.write(self._done)

    async def _check_means(self, steps: int) -> None:
        """Raise if another learner has taken the step that a further mean of ours belongs to."""
        if any(other.steps > steps and not other.waiting for other in await self._board.read(self._others)):
            raise SettingsError(
                f"{self._member.name} calls backward() again, and another learner has taken this step: all learners "
                "must call backward() equally often before a step, or all but the last inside of learner.no_sync()"
            )

    async def mean_is_missing(self) -> bool:
        """Return whether another learner takes a further mean before the step that we have announced.

        If gradients are accumulated, wait until all have announced it: their last steps may be of fewer minibatches.
        """
        if not self._others:
            return False
        while True:
            steps, means, waiting = self._done
            others = await self._board.read(self._others)
            if any(other.steps < steps and other.means > means for other in others):
                return True
            if all(other.steps >= steps for other in others):
                return False
            if not waiting:
                return False
            self._pause(SOON_SECONDS)

    async def pending(self) -> Act | None:
        """Return what another one has begun that we have not, the first of it."""
        if not self._others:
            return None
        steps, means, _ = self._done
        others = await self._board.read(self._others)
        if any(other.steps > steps for other in others):  # before a further mean, which would wait for us
            return "step"
        return "mean" if any(other.means > means for other in others) else None

    async def consensus_is_pending(self) -> bool:
        """Return whether another learner has entered a consensus that we have not."""
        key = f"{self._prefix} consensus {self._entered + 1}"
        return self._member.num_learners > 1 and await self._member.runtime.fetch_add(key, 0) > 0

    async def enter_consensus(self) -> None:
        """Wait until all learners have entered the consensus; raise if one that steps with us goes on instead."""
        member, runtime = self._member, self._member.runtime
        if member.num_learners == 1:
            return
        self._entered += 1
        key = f"{self._prefix} consensus {self._entered}"
        await runtime.fetch_add(key, 1)
        while await runtime.fetch_add(key, 0) < member.num_learners:
            if await self.pending() is not None:
                raise SettingsError(
                    f"{member.name} is in consensus() or save(), and another learner goes on with its next step: "
                    "in a loop every learner must enter it, after the same number of steps"
                )
            self._pause(POLL_SECONDS)

    async def end(self) -> None:
        """Tell all that we have come to our end."""
        if self._member.num_learners > 1:
            await self._member.runtime.fetch_add(f"{self._prefix} end", 1)

    async def all_ended(self) -> bool:
        """Return whether all have come to their end; if not, after a short pause."""
        member = self._member
        if member.num_learners == 1 or await member.runtime.fetch_add(f"{self._prefix} end", 0) == member.num_learners:
            return True
        self._pause(POLL_SECONDS)
        return False

    def _pause(self, seconds: float) -> None:
        with self._member.runtime.computing(self._member.learner):  # requests are served meanwhile
            time.sleep(seconds)
