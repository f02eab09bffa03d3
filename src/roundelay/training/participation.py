"""One rank's part in a run: join the membership, claim minibatches, take steps, synchronize, recover from a loss.

A loop over a task and a user loop share it; it knows neither tasks nor budgets.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from roundelay.communicator import gather_json
from roundelay.errors import LearnerLost
from roundelay.runtime import Membership
from roundelay.training.budget import Agenda, Claim, SyncInterval
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.guard import check_finite
from roundelay.training.member import Member
from roundelay.training.rank_state import RankState
from roundelay.training.recovery import NEWCOMER_WAITS, MembershipPlan, make_plan, make_report, merge
from roundelay.training.resumption import Resumption


class StateOwner(Protocol):
    """An object whose state is part of checkpoints."""

    def capture(self, into: RankState) -> None:
        """Add the state, under keys of its own."""

    def restore(self, saved: RankState) -> None:
        """Restore what `capture` added; what is missing keeps its initial value."""


@dataclass
class Steps:
    """The current step of one learner: begun, ended or undone."""

    member: Member
    loss: float = math.nan
    """Of the last minibatch that was trained."""
    unfinished: bool = False
    """Whether a snapshot was taken and its step has not ended."""

    def begin(self, claim: Claim, frames: int) -> Sequence[slice]:
        """Start what overlaps the gradient, and take the snapshot; return the buckets that the strategy wants."""
        member, learner, strategy = self.member, self.member.learner, self.member.active_strategy
        learner.set_position(claim.position)
        learner.frames = frames
        member.tracker.open()
        strategy.overlap(learner)
        learner.take_snapshot()
        self.unfinished = True
        return learner.buckets(strategy.bucket_bytes) if strategy.bucket_bytes and member.world.size > 1 else ()

    async def end(self, number: int | None, loss: float, *, skipped: bool = False) -> None:
        """Let the strategy turn the gradient into the next weights; a ``skipped`` minibatch is not recorded."""
        await self.member.active_strategy.step(self.member.learner)
        self.finish(() if number is None else (number,), loss, skipped=skipped)

    def finish(self, numbers: Sequence[int], loss: float, *, skipped: bool = False) -> None:
        """Note the end of a step of these minibatches, which a user loop may accumulate."""
        member, learner = self.member, self.member.learner
        self.unfinished = False
        member.tracker.close()
        if not numbers:
            return
        for number in numbers:
            member.tracker.finished(number)
        self.loss = loss
        if skipped:
            return
        metrics: dict[str, float] = {}
        for name, value in learner.metrics:
            metrics[name] = metrics.get(name, 0.0) + value
        learner.metrics.clear()
        frames = learner.frames // len(numbers)
        for number in numbers[:-1]:
            member.write("step", minibatch=number, frames=frames, loss=loss)
        rest = learner.frames - frames * (len(numbers) - 1)
        member.write("step", minibatch=numbers[-1], frames=rest, loss=loss, **metrics)

    def undo(self) -> None:
        """Undo the unfinished step: restore the weights from the snapshot."""
        member = self.member
        if self.unfinished and not member.active_strategy.partial_step_ok:
            member.learner.undo_step()
        self.unfinished = False
        member.tracker.abort()

    def capture(self, into: RankState) -> None:
        """Add the last loss."""
        into.state["loss"] = self.loss

    def restore(self, saved: RankState) -> None:
        """Restore the last loss."""
        self.loss = saved.state.get("loss", math.nan)


class Participation:
    """What a loop over a task and a user loop share.

    A minibatch is a transaction: if a learner is lost, `LearnerLost` is raised at an await.  Then `undo` restores the
    weights from the snapshot, and `rendezvous` forms a new membership, which hands the minibatch out again.
    """

    def __init__(
        self,
        member: Member,
        agenda: Agenda,
        checkpointer: Checkpointer | None = None,
        *,
        owners: Sequence[StateOwner] = (),
        fingerprint: dict[str, str] | None = None,
        lr_factor: float = 1.0,
    ) -> None:
        self.member, self.agenda, self.checkpointer = member, agenda, checkpointer
        self.steps = Steps(member)
        self._owners: Sequence[StateOwner] = (self.steps, *owners)
        self._fingerprint, self._lr_factor = fingerprint, lr_factor
        self._reason = ""  # why the last membership ended

    async def rendezvous(self) -> None:
        """Agree on a new membership, and start from the mean of the model holders or from a checkpoint."""
        member, agenda, checkpointer = self.member, self.agenda, self.checkpointer
        report = make_report(member, agenda, checkpointer, self._fingerprint, self._reason)
        membership = await member.runtime.rendezvous(member.learner, msgspec.to_builtins(report), make_plan)
        plan = msgspec.convert(membership.plan, MembershipPlan)
        member.enter(membership)
        if plan.checkpoint is not None:
            assert checkpointer is not None, "a plan with a checkpoint for a rank without any"
            resumption = Resumption(member, agenda, checkpointer, membership, self._lr_factor)
            saved = await resumption.run(plan.checkpoint, plan)
            for owner in self._owners:
                owner.restore(saved)
        else:
            await self._merge(membership, plan, had_model=report.has_model)

    async def _merge(self, membership: Membership, plan: MembershipPlan, *, had_model: bool) -> None:
        """Start from the mean of the model holders; at the beginning that is the first rank."""
        member, agenda, generation = self.member, self.agenda, membership.generation
        await merge(member, membership, plan)  # if this fails, the old list of remaining minibatches stays
        left_out = had_model and membership.rank not in plan.model_holders  # it was lost, and is admitted again
        newcomer = not member.has_model or left_out
        member.settle(generation)
        agenda.continue_at(plan.interval_index, plan.remaining, plan.intervals)
        warmup = agenda.current.warmup
        if generation:
            if self.checkpointer is not None:
                self.checkpointer.adopt(plan.attempt)
            await member.regroup_strategy(plan.model_holders[0], warmup=warmup, newcomer=newcomer)
        else:
            member.learner.rollback_lr_factor = self._lr_factor
            if self.checkpointer is not None:
                self.checkpointer.start_fresh(member, agenda)
            agenda.start_interval()  # the checkpointer may have divided it
            member.start_strategy(warmup=warmup)
        agenda.hand_out_remaining()
        if newcomer and generation:
            member.write("joined", generation=generation, size=membership.size)

    def undo(self, lost: LearnerLost) -> None:
        """Undo the unfinished step after a loss; call `rendezvous` next."""
        self.steps.undo()
        self._reason = str(lost)
        if self._reason != NEWCOMER_WAITS:
            self.member.write("lost", reason=self._reason, generation=self.member.generation)

    async def end_step(self, number: int | None, loss: float, *, skipped: bool = False) -> None:
        """End the step of a minibatch; raise the error of a checkpoint that could not be written."""
        await self.steps.end(number, loss, skipped=skipped)
        if self.checkpointer is not None:
            self.checkpointer.check()

    # -- synchronization points ---------------------------------------------------------------------------------

    async def synchronize(self, evaluate: Callable[[SyncInterval], Awaitable[bool]] | None = None) -> None:
        """Wait for all ranks at the end of an interval, evaluate, save, and start the next; weights stay our own.

        ``evaluate`` returns whether to stop the run.
        """
        member, agenda, runtime, world = self.member, self.agenda, self.member.runtime, self.member.world
        interval = agenda.current
        if not member.learner.is_server:
            member.tracker.open()
            await member.active_strategy.before_barrier(member.learner)
            member.tracker.close()
        unsafe = await self._barrier()  # all have finished: no request is under way
        runtime.pause_clock(paused=True)
        if interval.warmup and member.strategy.servers:  # servers took no part in it
            await world.broadcast(member.learner.weights, root=member.strategy.servers)
        stop = await evaluate(interval) if evaluate is not None else False
        agenda.advance(stop=stop)
        agenda.start_interval(unsafe)  # after the index changed: a loss from here on counts for the next one
        saving = self.checkpointer is not None and await self.checkpointer.decide(member, agenda, interval)
        agenda.start_interval(unsafe)  # the checkpointer may have divided it
        if interval.warmup and not agenda.done and not agenda.current.warmup:
            member.start_strategy(warmup=False)
        agenda.hand_out_interval()
        if saving:
            self.save(interval.end)
        await world.mean(torch.zeros(1))
        runtime.pause_clock(paused=False)
        if self.checkpointer is not None:
            self.checkpointer.start_interval(runtime.now())

    async def _barrier(self) -> list[int]:
        """Wait for all ranks; return the minibatches that are lost if the rank that trained them is lost.

        They are carried over: weights are not averaged here, and a learner may be lost right after this.
        """
        member, runtime, world = self.member, self.member.runtime, self.member.world
        pace = self.agenda.pace
        if not runtime.elastic:
            pace.met(world.size * float(await world.mean(torch.tensor([pace.rate]))))
            return []
        waiting = self.agenda.admitting or runtime.has_newcomers()
        mine = {"waiting": waiting, "unsafe": member.tracker.unsafe, "rate": pace.rate}
        everyone = await gather_json(world, mine)
        pace.met(sum(each["rate"] for each in everyone))
        if any(each["waiting"] for each in everyone):
            raise LearnerLost(NEWCOMER_WAITS)
        return sorted(number for each in everyone for number in each["unsafe"]) if world.size > 1 else []

    def save(self, position: int) -> None:
        """Save this rank's part of a checkpoint, if there is a checkpointer; all ranks are at a barrier."""
        if self.checkpointer is not None:
            self.checkpointer.save(self.member, position, self._capture)

    def _capture(self, position: int) -> RankState:
        state = RankState(position, self.member.world.rank, self.member.world.size)
        self.member.capture(state)
        self.agenda.capture(state)
        for owner in self._owners:
            owner.capture(state)
        return state.freeze()

    async def consensus(self) -> Tensor:
        """Return the weights to evaluate and save, the same on every rank."""
        return await self.member.active_strategy.consensus(self.member.learner)

    async def finish(self) -> Tensor:
        """Return the consensus after the last interval, when all ranks have it and all checkpoints are written."""
        member = self.member
        consensus = await self.consensus()
        await member.world.mean(torch.zeros(1))
        await member.runtime.stop_serving(member.learner)
        check_finite(member, consensus, "the consensus")
        if self.checkpointer is not None:
            self.checkpointer.wait()
        return consensus
