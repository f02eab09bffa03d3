"""One rank of a user loop, a learner or a server, in the membership: begin, rest, consensus, and losses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from torch import Tensor

from roundelay.communicator import Communicator, gather_json
from roundelay.errors import LearnerLost, Mismatch
from roundelay.learner import Learner
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.task import Schedule
from roundelay.training.budget import Agenda, SyncInterval
from roundelay.training.checkpoint_files import Saver
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.member import Member
from roundelay.training.participation import Participation

T = TypeVar("T")


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
        on_loss: Callable[[int, LearnerLost], None] | None = None,
    ) -> None:
        self.runtime, self._on_loss = runtime, on_loss
        self.member = Member(learner, strategy, runtime, schedule=schedule)
        self.agenda = Agenda(self.member, [SyncInterval(0, 0)])
        self.participation = Participation(
            self.member, self.agenda, Checkpointer(None, saver) if saver is not None else None
        )
        self.resting = True
        runtime.run(self.participation.rendezvous())

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
            if self._on_loss is not None:
                self._on_loss(self.member.generation, lost)
            self.participation.undo(lost)
            try:
                return self.runtime.run(self.participation.rendezvous())
            except LearnerLost as another:
                lost = another

    def regroup_after(self, generation: int, lost: LearnerLost) -> None:
        """Regroup, unless we have done so since that generation."""
        if self.member.generation == generation:
            self.regroup(lost)

    # -- between loops ------------------------------------------------------------------------------------------

    def agree(self, edited: bool) -> int | None:
        """Tell all ranks whether our model was changed at rest; return the first rank whose was, or ``None``."""
        everyone = self.runtime.run(gather_json(self.world, [edited, self.learner.shapes]))
        shapes = [shapes for _, shapes in everyone]
        if any(each != shapes[0] for each in shapes):
            other = next(rank for rank, each in enumerate(shapes) if each != shapes[0])
            first = next((one for one, two in zip(shapes[0], shapes[other], strict=False) if one != two), "the number")
            raise Mismatch(f"the learners train different parameters: ranks 0 and {other} differ in {first}")
        return next((rank for rank, (changed, _) in enumerate(everyone) if changed), None)

    def restart_from(self, rank: int) -> None:
        """Begin anew with the weights of ``rank``: the strategy has no memory of what was before."""
        self.runtime.run(_awaited(self.world.broadcast(self.learner.weights, root=rank)))
        for constant in self.learner.constants:
            self.runtime.run(_awaited(self.world.broadcast(constant.data, root=rank)))
        self.member.start_strategy(warmup=False)

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
