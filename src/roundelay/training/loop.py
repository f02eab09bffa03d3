"""The one training loop, the same for every strategy on every runtime.

Rendezvous, average the weights of the ranks that have the model, `setup`; then, until the common budget of minibatches
is used up: `overlap`, take the snapshot, compute the gradient, `step`.  At synchronization points the consensus is
evaluated.  If a learner is lost, the unfinished step is undone and the survivors continue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from roundelay.errors import LearnerLost
from roundelay.learner import Learner
from roundelay.strategy import Strategy
from roundelay.task import Scores, Task, seed_minibatch
from roundelay.training.agenda import Agenda, Claim
from roundelay.training.budget import Budget, SyncInterval
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.evaluation import Evaluator
from roundelay.training.guard import Guard
from roundelay.training.member import Member
from roundelay.training.observer import Observer, Step
from roundelay.training.participation import Participation
from roundelay.training.training_settings import GuardSettings

__all__ = ["Training"]


class Training:
    """One learner's training on a task; `run` is the whole of it."""

    def __init__(
        self,
        member: Member,
        task: Task,
        budget: Budget,
        *,
        seed: int = 0,
        guard: GuardSettings | None = None,
        checkpointer: Checkpointer | None = None,
        fingerprint: dict[str, str] | None = None,
        lr_factor: float = 1.0,
    ) -> None:
        self.member, self.task, self.budget, self.seed = member, task, budget, seed
        self.guard = Guard(guard if guard is not None else GuardSettings())
        self.observers: list[Observer] = []
        self._evaluator = Evaluator(member, task, budget.minibatches_per_epoch)
        agenda = Agenda(member, budget.intervals(), budget.shard_of if budget.shards is not None else None)
        self.participation = Participation(
            member,
            agenda,
            checkpointer,
            owners=[self._evaluator],
            fingerprint=fingerprint,
            lr_factor=lr_factor,
        )

    @property
    def learner(self) -> Learner:
        """The learner that is trained."""
        return self.member.learner

    @property
    def strategy(self) -> Strategy:
        """This learner's copy of the strategy."""
        return self.member.strategy

    @property
    def scores(self) -> Scores:
        """The scores of the last evaluation."""
        return self._evaluator.scores

    async def run(self) -> Tensor:
        """Train until the budget is used up, even if learners are lost; return the consensus."""
        part = self.participation
        while True:
            try:
                await part.assemble()
                while not part.agenda.done:
                    while not self.learner.is_server and (claim := await part.agenda.claim()) is not None:
                        await self.train(claim)
                    await part.synchronize(self._evaluate)
                return await part.finish()
            except LearnerLost as lost:
                part.undo(lost)

    async def train(self, claim: Claim) -> None:
        """Train one minibatch, or take part in a step without one."""
        member, learner, number = self.member, self.learner, claim.number
        frames = 0 if number is None else self.task.frames(*self.budget.locate(number))
        gradient = Gradient(self, number, self.participation.steps.begin(claim, frames))
        await member.runtime.compute(learner, gradient)
        if member.order is not None:
            await member.order.mark("g")
        await self.participation.end_step(number, gradient.loss, skipped=self.guard.skipped > 0)
        for observer in self.observers:
            observer.stepped(learner, Step(number, self.participation.steps.loss, member.num_learners))

    async def _evaluate(self, interval: SyncInterval) -> bool:
        """Evaluate the consensus if it is time; return whether to stop."""
        if not interval.evaluate or not (self.task.held_out_minibatches or self.learner.debug):
            return False
        evaluation = await self._evaluator.evaluate(interval.end)
        for observer in self.observers:
            observer.evaluated(self.learner, evaluation)
        schedule = self.member.schedule
        return schedule.on_evaluation(evaluation.scores) if schedule is not None else False


class Gradient:
    """The gradient of one minibatch, as runtimes run it."""

    def __init__(self, training: Training, number: int | None, parts: Sequence[slice]) -> None:
        self.training, self.number, self.parts, self.loss = training, number, parts, math.nan

    def ready(self, part: slice) -> None:
        """Tell the strategy that this part of the gradient is final."""
        member = self.training.member
        member.active_strategy.ready(member.learner, part)

    def run(self, ready: Callable[[slice], None] | None) -> None:
        """Compute the gradient; an idle learner's is zero."""
        training, task, learner = self.training, self.training.task, self.training.learner
        ready = ready if self.parts else None
        hooked = ready is not None and not training.guard.skips  # if it skips, buckets are final after its check
        finish = learner.hook_buckets(self.parts, ready) if ready is not None and hooked else None
        if self.number is not None:
            epoch, index = training.budget.locate(self.number)
            seed_minibatch(training.seed, epoch, index)
            self.loss = task.gradient(learner, task.load(epoch, index))
            learner.collect_grad()
            if not training.guard.accepts(training.member, task, epoch, index, self.loss):
                learner.discard()
        if finish is not None:
            finish()
        elif ready is not None:
            for part in self.parts:
                ready(part)
