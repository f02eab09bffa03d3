"""The one training loop, the same for every strategy on every runtime.

Agree on who is here, average the weights of those who hold the model, `setup`; then, until the cluster's common budget
of minibatches is spent: `overlap`, take the snapshot, compute the gradient, `step`.  At meeting points the consensus is
evaluated.  A minibatch is a transaction: when a learner is lost, `LearnerLost` is raised at an await; the weights go
back to the snapshot, the minibatch is given back, and the survivors assemble anew.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.errors import LearnerLost, SettingsError
from roundelay.learner import Learner
from roundelay.runtime import Membership, Runtime
from roundelay.strategies.synchronous import Synchronous
from roundelay.strategy import Strategy
from roundelay.task import Schedule, Scores, Task, seed_minibatch
from roundelay.training.budget import Budget, Claim, ClaimQueue
from roundelay.training.checkpoint_files import CheckpointSettings, Saver
from roundelay.training.evaluation import arrive, check_finite, decide, evaluate_consensus, save
from roundelay.training.event_order import Order, watch
from roundelay.training.ledger import MinibatchTracker
from roundelay.training.nonfinite import GuardSettings, check_gradient
from roundelay.training.recovery import WELCOME, describe_state, merge, somebody_waits
from roundelay.training.resumption import plan_start, report_start, resume, start_over

__all__ = ["Training"]


class Training:
    """One learner's training; `run` is the whole of it, the rest are its steps."""

    def __init__(
        self,
        learner: Learner,
        strategy: Strategy,
        runtime: Runtime,
        *,
        task: Task,
        budget: Budget,
        schedule: Schedule | None = None,
        seed: int = 0,
        order: Order | None = None,
    ) -> None:
        self.order = order
        self.learner, self.runtime, self.task, self.budget, self.seed = learner, runtime, task, budget, seed
        self.schedule = learner.schedule = schedule
        self.strategy, self.warming = copy.deepcopy(strategy), Synchronous()
        self.acting: Strategy = self.warming
        self.stretches = budget.intervals()
        self.stretch = 0  # the number of the one we are in
        self._left = [(self.stretches[0].begin, self.stretches[0].end)]  # of it, when this membership began
        self.epoch = -1  # of the membership
        self.holds = False  # whether our weights are the model's, or just what the module began with
        self.scores: Scores = {}
        self.evaluated: Tensor | None = None  # the consensus that the scores are of
        self.loss = math.nan
        self.on_step: Callable[[Training], None] | None = None
        self.on_scores: Callable[[Training], None] | None = None
        self.checkpoint: CheckpointSettings | None = None  # how often to save
        self.saver: Saver | None = None  # what saves
        self.saved = self.began = 0.0  # when the last checkpoint was made, and when this stretch began
        self.guard: GuardSettings | None = None  # against what is not finite; by default the run stops
        self.skipped = 0  # minibatches in a row
        self.fingerprint: dict[str, str] | None = None  # what has to be the same on all
        self.lower = 1.0  # a factor of the learning rate on top of the checkpoint's, where we are rolled back to one
        self.ledger = MinibatchTracker(runtime)
        self.world: Communicator
        self._unfinished = False  # whether a snapshot was taken whose step has not ended
        self._reason = ""  # the last membership ended
        self.conserved: float | None = None  # what all weights would sum to without steps; debug mode only

    @property
    def member(self) -> str:
        """Our name in records and messages."""
        return f"{'server' if self.learner.is_server else 'learner'} {self.learner.index}"

    async def run(self) -> Tensor:
        """Train until the budget is spent, whoever is lost meanwhile; return the consensus."""
        while True:
            try:
                await self.assemble()
                while self.stretch < len(self.stretches):
                    await self.train_stretch()
                    await self.meet()
                return await self.finish()
            except LearnerLost as lost:
                self.undo(lost)

    # -- who is here --------------------------------------------------------------------------------------------

    async def assemble(self) -> None:
        """Agree on who is here and what is left, and start from the mean of those who hold the model."""
        learner = self.learner
        report = {
            **describe_state(self),
            **report_start(self),
            "epoch": self.epoch,
            "stretch": self.stretch,
            "left": self._left,
            "trained": self.ledger.trained,
            "reason": self._reason,
        }
        view = await self.runtime.rendezvous(learner, report, plan_start)
        servers = self.strategy.servers
        if view.size <= servers:
            raise SettingsError(
                f"{view.size} ranks cannot train by {type(self.strategy).__name__}, which takes {servers} for serving"
            )
        if view.size == self.runtime.initial_size:  # a strategy has to make do with those who are left
            self.strategy.check(view.size - servers)
        learner.is_server = view.rank < servers
        learner.index = view.rank - (0 if learner.is_server else servers)
        self.world, self.learners = watch(self.ledger.watch(learner.comm), self.order), view.size - servers
        if view.plan.get("checkpoint") is not None:
            await resume(self, view)
        else:
            await self._go_on(view, held=bool(report["holds"]))

    async def _go_on(self, view: Membership, *, held: bool) -> None:
        """Start from the mean of those who hold the model; at the beginning that is the first one."""
        await merge(self, view)  # until it is done, what was left before is what is left
        left_out = held and view.rank not in view.plan["holders"]  # and now let in again
        newcomer, self.holds = not self.holds or left_out, True
        self.stretch, self.epoch = view.plan["stretch"], view.generation
        self.offer(view.plan["left"])
        if not view.generation:
            start_over(self)
            self.offer_next([])  # a checkpoint to come may have cut it
        await self.begin_strategy(view.plan["holders"][0] if view.generation else None, newcomer=newcomer)
        left = [range(begin, end) for begin, end in self._left]
        self.claim_from(left[0] if len(left) == 1 else list(itertools.chain.from_iterable(left)))
        if newcomer and view.generation:
            self.runtime.record.write(
                "joined", self.member, self.runtime.now(), generation=view.generation, size=view.size
            )

    async def begin_strategy(self, veteran: int | None = None, *, newcomer: bool = True) -> None:
        """Set up the strategy of this stretch; after a loss ``veteran`` is a rank that was there before."""
        learner, servers = self.learner, self.strategy.servers
        warmup = self.stretches[min(self.stretch, len(self.stretches) - 1)].warmup
        self.acting = self.warming if warmup else self.strategy
        learner.comm, learner.multiplicity, self.conserved = self.world, 1, None
        self.ledger.lasting = self.acting.partial_step_ok or servers > 0  # servers take no steps
        if servers and warmup:
            learner.comm = self.world.split([range(servers), range(servers, self.world.size)])
        learner.alias_snapshot(one=self.world.size == 1 or self.acting.atomic_step)
        if veteran is None:
            self.acting.setup(learner)
        else:
            await self._share(veteran, newcomer=newcomer)
            self.acting.regroup(learner)
        if self.acting.fallback_note and self.world.rank == 0:
            self.runtime.record.write("fallback", self.member, self.runtime.now(), note=self.acting.fallback_note)
        if self.acting.serves_requests:
            serving = self.ledger.serving(self.acting)
            self.runtime.start_serving(learner, serving if self.order is None else self.order.serving(serving))

    def cut(self, position: int) -> None:
        """Have all meet at ``position`` too."""
        for index, whole in enumerate(self.stretches):
            if whole.begin < position < whole.end:
                before = dataclasses.replace(whole, end=position, evaluate=False, checkpoint=False)
                self.stretches[index : index + 1] = [before, dataclasses.replace(whole, begin=position)]
                return

    async def _share(self, veteran: int, *, newcomer: bool) -> None:
        """Hand what ``replicated`` names to newcomers; all set up alike, since that may split groups off."""
        if self.acting.replicated:
            kept = {name: getattr(self.acting, name, None) for name in self.acting.replicated} if not newcomer else {}
            self.acting.setup(self.learner)
            for name in self.acting.replicated:
                if kept.get(name) is not None:  # there is none yet where this one had not come out of the warm-up
                    setattr(self.acting, name, kept[name])
                await self.world.broadcast(getattr(self.acting, name), root=veteran)
            self.learner.comm, self.learner.multiplicity = self.world, 1

    def partition(self) -> list[list[int]]:
        """Return the ranks of those who step together, and each server by itself."""
        servers = self.strategy.servers
        together = [[servers + member for member in group] for group in self.acting.lockstep_groups(self.learners)]
        return [*([server] for server in range(servers)), *together]

    def offer(self, left: list[tuple[int, int]]) -> None:
        """Begin with these minibatches of a stretch, none of them trained."""
        self._left = left
        self.ledger.begin()

    def offer_next(self, unsafe: Sequence[int]) -> None:
        """Begin with all of this stretch, and with what of former ones would be ``unsafe`` if somebody were lost."""
        now = self.stretches[self.stretch : self.stretch + 1]
        self._left = [*((number, number + 1) for number in unsafe), *((each.begin, each.end) for each in now)]
        self.ledger.begin(keep=bool(unsafe))

    def claim_from(self, left: Sequence[int]) -> None:
        """Hand out these minibatches from now on."""
        groups = self.acting.lockstep_groups(self.learners)
        self.counter, self.welcoming = f"claimed {self.epoch} {self.stretch}", False
        if self.learner.is_server and self.stretch < len(self.stretches):
            self.learner.set_position(self.stretches[self.stretch].end - len(left))
        self.claims = ClaimQueue(left, groups, 0 if self.learner.is_server else self.learner.index, self.budget)
        self.group: Communicator | None = None
        if self.claims.counted and self.learners > len(groups):
            self.group = self.world.split(self.partition())

    def undo(self, lost: LearnerLost) -> None:
        """Make it so that the step which could not be finished has not happened."""
        if self._unfinished and not self.acting.partial_step_ok:
            self.learner.weights.copy_(self.learner.snapshot)
        self._unfinished = False
        self.ledger.sending = False
        self._reason = str(lost)
        if self._reason != WELCOME:
            self.runtime.record.write(
                "lost", self.member, self.runtime.now(), reason=self._reason, generation=self.epoch
            )

    # -- minibatches --------------------------------------------------------------------------------------------

    async def train_stretch(self) -> None:
        """Train until the minibatches of this stretch are all claimed."""
        while not self.learner.is_server and (claim := await self.claim()) is not None:
            gradient = self.begin(claim)
            await self.runtime.compute(self.learner, gradient)
            if self.order is not None:
                await self.order.mark("g")
            await self.end(claim, gradient.loss)

    async def claim(self) -> Claim | None:
        """Take the next minibatch of the cluster's common budget; ``None``: the stretch is spent."""
        self.welcoming = await somebody_waits(self)
        if not self.claims.counted:
            return self.claims.take(self.claims.next_base()) if not self.welcoming else None
        base, size = 0, len(self.claims.group)
        if self.claims.seat == 0:
            base = await self.runtime.fetch_add(self.counter, size)
            if self.order is not None:
                base = await self.order.claimed(base)
        if self.group is not None and size > 1:
            base = int(await self.group.broadcast(torch.tensor([base]), root=0))
        return self.claims.take(base)

    def begin(self, claim: Claim) -> Gradient:
        """Start what overlaps the gradient, and take the snapshot."""
        learner = self.learner
        learner.set_position(claim.position)
        learner.frames = 0 if claim.number is None else self.task.frames(*self.budget.locate(claim.number))
        self.ledger.open()
        self.acting.overlap(learner)
        learner.take_snapshot()
        self._unfinished = True
        return Gradient(self, claim)

    async def end(self, claim: Claim, loss: float) -> None:
        """Let the strategy turn the gradient into the next weights."""
        await self.acting.step(self.learner)
        self._unfinished = False
        self.ledger.close()
        if claim.number is not None:
            self.ledger.finished(claim.number)
            self.loss = loss
            if not self.skipped:
                self._write_step(claim.number, loss)
        if self.saver is not None:
            self.saver.check()
        if self.on_step is not None:
            self.on_step(self)

    def _write_step(self, number: int, loss: float) -> None:
        figures: dict[str, float] = {}
        for name, value in self.learner.metrics:
            figures[name] = figures.get(name, 0.0) + value
        self.learner.metrics.clear()
        self.runtime.record.write(
            "step", self.member, self.runtime.now(), minibatch=number, frames=self.learner.frames, loss=loss, **figures
        )

    # -- meetings -----------------------------------------------------------------------------------------------

    async def meet(self) -> None:
        """Meet all others at the end of a stretch: evaluate, and go on from our own weights."""
        stretch = self.stretches[self.stretch]
        if not self.learner.is_server:
            self.ledger.open()
            await self.acting.before_barrier(self.learner)
            self.ledger.close()
        unsafe = await arrive(self)  # all have finished: no request is under way
        self.runtime.pause_clock(paused=True)
        wanted = stretch.evaluate and (self.task.held_out_minibatches or self.learner.debug)
        if stretch.warmup and self.strategy.servers:  # which took no part in it
            await self.world.broadcast(self.learner.weights, root=self.strategy.servers)
        stop = await evaluate_consensus(self, stretch.end) if wanted else False
        self.stretch = len(self.stretches) if stop else self.stretch + 1
        self.offer_next(unsafe)  # with the stretch's number: who is lost from now on is lost in the next one
        saving = await decide(self, stretch)
        self.offer_next(unsafe)  # a checkpoint to come may have cut it
        if self.stretch < len(self.stretches):
            now = self.stretches[self.stretch]
            if stretch.warmup and not now.warmup:
                await self.begin_strategy()
            self.claim_from(range(now.begin, now.end))
        if saving:
            save(self, stretch.end)
        await self.world.mean(torch.zeros(1))
        self.runtime.pause_clock(paused=False)
        self.began = self.runtime.now()

    async def finish(self) -> Tensor:
        """Return the consensus, when all have met for the last time."""
        consensus = await self.acting.consensus(self.learner)
        await self.world.mean(torch.zeros(1))
        await self.runtime.stop_serving(self.learner)
        check_finite(self, consensus, "the consensus")
        if self.saver is not None:
            self.saver.wait()
        return consensus


class Gradient:
    """The gradient of one minibatch, as runtimes run it."""

    def __init__(self, training: Training, claim: Claim) -> None:
        self.training, self.number, self.loss = training, claim.number, math.nan
        strategy, learner = training.acting, training.learner
        wanted = strategy.bucket_bytes and training.world.size > 1
        self.parts: Sequence[slice] = learner.buckets(strategy.bucket_bytes) if wanted else ()

    def ready(self, part: slice) -> None:
        """Tell the strategy that this part of the gradient is final."""
        self.training.acting.ready(self.training.learner, part)

    def run(self, ready: Callable[[slice], None] | None) -> None:
        """Take the gradient; an idle learner's is zero."""
        training, learner = self.training, self.training.learner
        skips = training.guard is not None and training.guard.nonfinite == "skip"  # then parts are final in the end
        finish = learner.hook_buckets(self.parts, ready) if ready is not None and self.parts and not skips else None
        if self.number is not None:
            epoch, index = training.budget.locate(self.number)
            seed_minibatch(training.seed, epoch, index)
            self.loss = training.task.gradient(learner, training.task.load(epoch, index))
            learner.collect_grad()
            if not check_gradient(training, epoch, index, self.loss):
                learner.discard()
        if finish is not None:
            finish()
        elif ready is not None and skips:
            for part in self.parts:
                ready(part)
