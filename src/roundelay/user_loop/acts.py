"""What the learners of a user loop do together, counted: who has come to its end takes part in what others still do.

A user loop decides when it takes a step, and learners may take different numbers of them.  Each act is announced by a
counter that all learners see.  So a learner at its end can follow the others without knowing how many acts are left.
"""

from __future__ import annotations

import time
from typing import Literal

from roundelay.errors import SettingsError
from roundelay.training.budget import Agenda
from roundelay.training.member import Member

Act = Literal["step", "mean"]
"""A step; or the mean gradient, which some strategies take at the end of each backward pass."""

_UNITS: dict[Act, int] = {"step": 1, "mean": 1 << 32}  # both kinds are counted in one number
POLL_SECONDS = 0.002


class Acts:
    """Our acts since all learners last began, and how to see those of the others.

    Steps and means are numbered together, for the learners that step together.  Entries into the consensus are numbered
    by themselves, for all learners.
    """

    def __init__(self, member: Member, agenda: Agenda) -> None:
        self._member, self._agenda = member, agenda
        self.begin()

    def begin(self) -> None:
        """Count from 0; all learners do so at the same point."""
        member, index = self._member, self._member.learner.index
        groups = member.active_strategy.lockstep_groups(member.num_learners)
        group = next(group for group in groups if index in group)
        self._alone = len(group) == 1
        self._prefix = f"acts {self._agenda.interval_index}"
        self._name = f"{self._prefix} {group[0]}"
        self._done = self._entered = 0

    async def announce(self, act: Act) -> None:
        """Tell those who step with us that we begin ``act``."""
        if not self._alone:
            self._done += 1
            await self._member.runtime.fetch_add(f"{self._name} {self._done}", _UNITS[act])

    async def pending(self) -> Act | None:
        """Return what another one has begun that we have not, the first of it."""
        if self._alone:
            return None
        begun = await self._member.runtime.fetch_add(f"{self._name} {self._done + 1}", 0)
        return None if begun == 0 else "mean" if begun >= _UNITS["mean"] else "step"

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
            self._pause()

    async def end(self) -> None:
        """Tell all that we have come to our end."""
        if self._member.num_learners > 1:
            await self._member.runtime.fetch_add(f"{self._prefix} end", 1)

    async def all_ended(self) -> bool:
        """Return whether all have come to their end; if not, after a short pause."""
        member = self._member
        if member.num_learners == 1 or await member.runtime.fetch_add(f"{self._prefix} end", 0) == member.num_learners:
            return True
        self._pause()
        return False

    def _pause(self) -> None:
        with self._member.runtime.computing(self._member.learner):  # requests are served meanwhile
            time.sleep(POLL_SECONDS)
