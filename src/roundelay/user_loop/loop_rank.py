"""One rank of a user loop, a learner or a server, in the membership: begin, rest, consensus, and losses."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, gather_json
from roundelay.errors import CommunicationError, LearnerLost, Mismatch, SettingsError
from roundelay.learner import Learner
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.task import Schedule
from roundelay.training.budget import Agenda, SyncInterval
from roundelay.training.checkpoint_files import Saver
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.member import Member
from roundelay.training.participation import Participation
from roundelay.training.recovery import NEWCOMER_WAITS

T = TypeVar("T")
SERVER_LOST = (
    "a server was lost with the process of the learner that it lived in; the run cannot continue without it, but all "
    "can be started again, and continue from their checkpoints"
)
REST = 2
"""Where a standing says whether the learner is at rest."""


class LoopFollower(Protocol):
    """The learner in a user loop, as its rank sees it when learners are lost or come back."""

    @property
    def standing(self) -> tuple[int, ...]:
        """How far it is in its script's loops; who is further has the larger one."""

    def describe(self) -> dict[str, Any]:
        """Return what one that is behind must know."""

    def catch_up(self, described: dict[str, Any]) -> None:
        """Take over from the furthest."""

    def note_loss(self, generation: int, lost: LearnerLost) -> None:
        """Prepare for a new membership after the one of this number."""


class LoopRank:
    """A rank of a user loop.

    Between two loops a rank is at rest: all ranks have passed a barrier, and no step is under way.  `begin` and `rest`
    are called by all ranks at the same point of their programs.
    """

    def __init__(
        self,
        learner: Learner,
        strategy: Strategy,
        runtime: Runtime,
        *,
        schedule: Schedule | None = None,
        saver: Saver | None = None,
        follower: LoopFollower | None = None,
        serves: bool = False,
        waits: bool = False,
    ) -> None:
        self.runtime, self._follower = runtime, follower
        self.member = Member(learner, strategy, runtime, schedule=schedule)
        self.agenda = Agenda(self.member, [SyncInterval(0, 0)])
        self.participation = Participation(
            self.member, self.agenda, Checkpointer(None, saver) if saver is not None else None
        )
        self.resting, self._serves = True, serves
        self.furthest: tuple[int, ...] = ()
        """How far the furthest learner was when they last compared."""
        if not waits:
            self.enter()

    def enter(self) -> None:
        """Take our place among the ranks."""
        try:
            self.runtime.run(self._rendezvous())
        except LearnerLost as lost:
            self.regroup(lost)

    @property
    def learner(self) -> Learner:
        """The learner, or the server's copy of the model."""
        return self.member.learner

    @property
    def world(self) -> Communicator:
        """All ranks, servers first."""
        return self.member.world

    def replace_learner(self, new: Learner) -> None:
        """Train with another vector from now on; all ranks do so at rest, and begin anew after it."""
        old = self.member.learner
        for name in ("comm", "schedule", "rollback_lr_factor", "index", "is_server", "minibatch"):
            setattr(new, name, getattr(old, name))
        new.stateful |= {name: owner for name, owner in old.stateful.items() if name not in new.stateful}
        self.member.learner = new

    # -- losses -------------------------------------------------------------------------------------------------

    def elastic(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run a coroutine; if a learner is lost meanwhile, continue with the survivors, and return ``None``."""
        try:
            return self.runtime.run(work)
        except LearnerLost as lost:
            self.regroup(lost)
            return None

    def regroup(self, lost: LearnerLost) -> None:
        """Undo the unfinished step and agree with the survivors on how to continue."""
        while True:
            if self._follower is not None:
                self._follower.note_loss(self.member.generation, lost)
            self.participation.undo(lost)
            try:
                return self.runtime.run(self._rendezvous())
            except LearnerLost as another:
                lost = another

    async def _rendezvous(self) -> None:
        """Agree on a membership; if it is not the first one, also on how far all are in their loops."""
        try:
            await self.participation.rendezvous()
        except SettingsError as error:  # after a loss: there are no more ranks than servers
            if not self.member.strategy.servers or self.member.generation < 0:
                raise
            raise CommunicationError(SERVER_LOST) from error
        if self._serves != self.learner.is_server:
            raise CommunicationError(SERVER_LOST)
        if self.member.generation == 0:
            return
        follower = self._follower
        told = await gather_json(self.world, follower.standing if follower is not None else None)
        known = {rank: tuple(standing) for rank, standing in enumerate(told) if standing is not None}
        self.furthest = max(known.values())
        if all(standing == self.furthest for standing in known.values()):
            return
        first = min(rank for rank, standing in known.items() if standing == self.furthest)
        mine = follower.describe() if follower is not None and self.world.rank == first else None
        described = (await gather_json(self.world, mine))[first]
        if follower is not None and known[self.world.rank] != self.furthest:
            follower.catch_up(described)

    def regroup_after(self, generation: int, lost: LearnerLost) -> None:
        """Regroup, unless we have done so since that generation."""
        if self.member.generation == generation:
            self.regroup(lost)

    # -- between loops ------------------------------------------------------------------------------------------

    def agree(self, edited: bool) -> int | None:
        """Tell all ranks whether our model was changed at rest; return the first rank whose was, or ``None``."""
        waiting = self.runtime.elastic and self.runtime.has_newcomers()
        everyone = self.runtime.run(gather_json(self.world, [edited, self.learner.shapes, waiting]))
        if any(waiting for _, _, waiting in everyone):
            raise LearnerLost(NEWCOMER_WAITS)
        shapes = [shapes for _, shapes, _ in everyone]
        if any(each != shapes[0] for each in shapes):
            other = next(rank for rank, each in enumerate(shapes) if each != shapes[0])
            first = next((one for one, two in zip(shapes[0], shapes[other], strict=False) if one != two), "the number")
            raise Mismatch(f"the learners train different parameters: ranks 0 and {other} differ in {first}")
        return next((rank for rank, (changed, _, _) in enumerate(everyone) if changed), None)

    def restart_from(self, rank: int) -> None:
        """Begin anew with the weights of ``rank``: the strategy has no memory of what was before."""
        self.runtime.run(_awaited(self.world.broadcast(self.learner.weights, root=rank)))
        for constant in self.learner.constants:
            self.runtime.run(_awaited(self.world.broadcast(constant.data, root=rank)))
        self.member.start_strategy(warmup=False)
        self.barrier()  # no server replies before it has begun anew

    def begin(self, minibatches: int) -> int:
        """Begin a loop over so many common minibatches; return the number of the first."""
        self.resting = False
        return self.agenda.append(minibatches)

    def rest(self) -> Tensor | None:
        """Come to rest with all ranks; return the consensus, or ``None`` if minibatches remain because of a loss."""
        while True:
            generation = self.member.generation
            if not self.agenda.done:
                self.elastic(self.participation.synchronize())
            if generation == self.member.generation:
                vector = self.elastic(self.participation.consensus())
                if vector is not None:
                    self.resting = True
                    return vector
            if len(self.furthest) > REST and self.furthest[REST]:  # another one has come to rest, and so do we
                self.resting = True
                return self.learner.weights.clone()
            if not self.agenda.done:
                return None

    def leave(self) -> None:
        """Leave the run; all ranks are at rest."""
        self.barrier()
        self.runtime.run(self.runtime.stop_serving(self.learner))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.runtime.run(gather_json(self.world, None))


async def _awaited(operation: Any) -> Any:
    return await operation
