"""The one training loop, the same for every strategy on every runtime.

Rendezvous, average the weights of the ranks that have the model, `setup`; then, until the common budget of minibatches
is used up: `overlap`, take the snapshot, compute the gradient, `step`.  At synchronization points the consensus is
evaluated.  If a learner is lost, the unfinished step is undone and the survivors continue.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from roundelay.devices import choose_device, to_device, use_device
from roundelay.errors import CheckpointError, LearnerLost
from roundelay.learner import Learner
from roundelay.runtime import Runtime
from roundelay.strategy import Strategy
from roundelay.task import Schedule, Scores, Task, seed_minibatch
from roundelay.training.budget import Agenda, Budget, Claim, SyncInterval
from roundelay.training.checkpoint_files import Saver
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.evaluation import Evaluator
from roundelay.training.event_order import Order
from roundelay.training.guard import Guard
from roundelay.training.member import Member
from roundelay.training.model_selection import ModelSelector
from roundelay.training.observer import Observer, Step
from roundelay.training.participation import Participation
from roundelay.training.training_settings import CheckpointSettings, GuardSettings, KeepSettings


class Training:
    """One learner's training by a job; `run` is the whole of it."""

    def __init__(self, member: Member, job: Job) -> None:
        self.member, self.job, self.task, self.budget = member, job, job.task, job.budget
        self.guard = Guard(job.guard)
        self.observers: list[Observer] = []
        if job.selector is not None:
            job.selector.watch(member.learner, self.observers)
        self._evaluator = Evaluator(member, job.task, self.budget.minibatches_per_epoch)
        shard_of = self.budget.shard_of if self.budget.shards is not None else None
        saves = job.checkpoint is not None or job.saver is not None
        self.participation = Participation(
            member,
            Agenda(member, self.budget.intervals(), shard_of),
            Checkpointer(job.checkpoint, job.saver) if saves else None,
            owners=[self._evaluator],
            fingerprint=job.fingerprint,
            lr_factor=job.lr_factor,
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
                await part.rendezvous()
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
            seed_minibatch(training.job.seed, epoch, index)
            self.loss = task.gradient(learner, to_device(task.load(epoch, index), learner.weights.device))
            learner.collect_grad()
            if not training.guard.accepts(training.member, task, epoch, index, self.loss):
                learner.discard()
        if finish is not None:
            finish()
        elif ready is not None:
            for part in self.parts:
                ready(part)


def _plain_sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


@dataclass
class Job:
    """What is trained, how, and for how long; `training` makes one learner of it, on any runtime."""

    task: Task
    strategy: Strategy
    budget: Budget
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = _plain_sgd
    schedule: Callable[[], Schedule] | None = None
    clip: float | None = None
    seed: int = 0
    debug: bool = False
    checkpoint: CheckpointSettings | None = None
    guard: GuardSettings = field(default_factory=GuardSettings)
    keep: KeepSettings = field(default_factory=KeepSettings)
    saver: Saver | None = None
    """Writes checkpoints, if the run has a folder; shared by all learners of a process."""
    selector: ModelSelector | None = None
    """Keeps models, unless the run leaves the last one; shared by all learners of a process."""
    lr_factor: float = 1.0
    """A factor of the learning rate on top of the checkpoint's, below 1 if the run is rolled back."""
    fingerprint: dict[str, str] | None = None
    """What must be the same on all learners, by name; compared when they first rendezvous."""
    start: dict[str, Tensor] | None = None
    """Pre-trained weights, by their names in the module."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What losses are computed in, where torch's autocast does; weights stay float32."""
    device: str = "cpu"
    """What learners compute on: ``auto``, ``cpu``, or an accelerator."""

    def attempt(self, folder: Path | None, *, lr_factor: float = 1.0, start: dict[str, Tensor] | None = None) -> Job:
        """Return this job for one attempt at it, which saves to ``folder`` and chooses the model to leave."""
        saver = Saver(folder, self.checkpoint or CheckpointSettings()) if folder is not None else None
        selector = ModelSelector(self.keep) if self.keep.model != "last" else None
        return dataclasses.replace(self, saver=saver, selector=selector, lr_factor=lr_factor, start=start)

    def close(self) -> None:
        """Wait for what is being saved."""
        if self.saver is not None:
            self.saver.close()

    def training(self, runtime: Runtime, order: Order | None = None) -> Training:
        """Make a learner's training."""
        module = self.task.make_module()
        if self.start is not None:
            start_with(module, self.start)
        device = choose_device(self.device)
        use_device(device)
        module.to(device)
        nominal_frames = self.task.nominal_frames
        learner = Learner(
            module, self.optimizer(module), clip=self.clip, nominal_frames=nominal_frames, debug=self.debug
        )
        learner.precision = getattr(torch, self.precision)
        schedule = self.schedule() if self.schedule is not None else None
        return Training(Member(learner, self.strategy, runtime, schedule=schedule, order=order), self)


def start_with(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give a module some of its weights."""
    try:
        unexpected = module.load_state_dict(tensors, strict=False).unexpected_keys
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise CheckpointError(f"pretrain: the weights are another model's: {reason}") from error
    if unexpected:
        raise CheckpointError(f"pretrain: the weights are another model's: it has no {unexpected[0]}")
