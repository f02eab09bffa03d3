"""Resuming from a checkpoint: all ranks restore the newest complete one, with as many ranks or another number."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import torch

from roundelay.communicator import gather_json
from roundelay.errors import CheckpointError
from roundelay.runtime import Membership
from roundelay.training.budget import Agenda
from roundelay.training.checkpoint_files import CheckpointId
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.member import Member
from roundelay.training.rank_state import RankState, restore_stateful, restore_strategy, restore_weights
from roundelay.training.recovery import MembershipPlan

logger = logging.getLogger(__name__)


class Resumption:
    """Restores one rank from its parts of a checkpoint; `run` is all of it."""

    def __init__(
        self, member: Member, agenda: Agenda, checkpointer: Checkpointer, membership: Membership, lr_factor: float
    ) -> None:
        self._member, self._agenda, self._checkpointer = member, agenda, checkpointer
        self._membership, self._lr_factor = membership, lr_factor

    async def run(self, chosen: CheckpointId, plan: MembershipPlan) -> RankState:
        """Restore the chosen checkpoint; return the state that steps and evaluations continue from."""
        member, view, files = self._member, self._membership, self._checkpointer.checkpoints
        runtime, world, position, size = member.runtime, member.world, chosen.position, chosen.size
        runtime.pause_clock(paused=True)
        parts = [files.read(position, part) for part in range(view.rank, size, view.size)]
        for part in parts:
            self._check(part)
        if parts:  # before any rank waits: virtual time does not pass meanwhile
            runtime.restore({"now": parts[0].state["runtime"]["now"]})
        self._checkpointer.adopt(chosen.attempt + 1)
        unsafe = parts[0].state.get("unsafe", []) if parts and size == view.size else []  # all ranks have a mean
        everyone = await gather_json(world, {"unsafe": unsafe, **(_common(parts[0]) if view.rank == 0 else {})})
        common = everyone[0]
        member.restore_schedule(common["schedule"])
        member.learner.rollback_lr_factor = common["cut"] * self._lr_factor
        if size == view.size:
            self._restore_same_size(parts[0], done=common["done"])
        else:
            await self._restore_other_size(parts, common, position)
        member.tracker.restore(unsafe)
        self._agenda.start_interval(sorted(number for each in everyone for number in each["unsafe"]))
        files.remove([other for other in files.positions() if other > position], view.rank)
        if view.rank == 0:
            files.clean(position)
        await world.mean(torch.zeros(1))  # all ranks are here: do not await anything until the record is restored
        if size == view.size:
            member.restore(parts[0])
        else:
            for part in reversed(parts):  # each may have written a record of its own
                runtime.restore(part.state["runtime"])
            runtime.restore({"now": common["now"]})
            if parts:
                restore_stateful(member.learner, parts[0])
        self._checkpointer.start_interval(runtime.now(), resumed=True)
        self._write_record(chosen, plan)
        await world.mean(torch.zeros(1))
        runtime.pause_clock(paused=False)
        return parts[0] if size == view.size else RankState(position, state=common)

    def _write_record(self, chosen: CheckpointId, plan: MembershipPlan) -> None:
        member, size = self._member, self._membership.size
        if self._membership.rank:
            return
        for message in plan.damaged:
            logger.warning("%s; resuming from the checkpoint before it, at minibatch %d", message, chosen.position)
            member.write("damaged", reason=message)
        rate = member.learner.rollback_lr_factor
        member.write("resumed", minibatch=chosen.position, size=size, source=chosen.size, rate=rate)

    def _check(self, part: RankState) -> None:
        """Raise if a checkpoint is of another model or strategy; a user loop may have changed meanwhile."""
        where = self._checkpointer.checkpoints.place(part.position)
        strategy, made_by = type(self._member.strategy).__name__, part.state["strategy_name"]
        theirs, ours = part.state["shapes"], self._member.learner.shapes
        for their, our in itertools.zip_longest(theirs, ours, fillvalue=["nothing", []]):
            if their != our:
                found = f"{their[0]} {their[1]}, here {our[0]} {our[1]}"
                raise CheckpointError(f"{where}: of another model: {found}; give another folder")
        if made_by != strategy:
            raise CheckpointError(f"{where}: made by {made_by}, not {strategy}; give another folder")

    def _restore_position(self, position: int, *, done: bool) -> None:
        self._member.settle(self._membership.generation)
        self._agenda.restore_position(position, done=done)
        self._checkpointer.add_first_sync_point(self._member, self._agenda, position)
        self._agenda.start_interval()
        self._member.start_strategy(warmup=self._agenda.current.warmup)

    def _restore_same_size(self, part: RankState, *, done: bool) -> None:
        """Continue with the same number of ranks: each has its own part."""
        member = self._member
        restore_weights(member.learner, [part])
        self._restore_position(part.position, done=done)
        restore_weights(member.learner, [part])  # `setup` may scatter them
        restore_strategy(member.active_strategy, part)
        self._agenda.restore_pace(part)
        self._agenda.hand_out_interval()

    async def _restore_other_size(self, parts: list[RankState], common: dict[str, Any], position: int) -> None:
        """Continue with another number: from the mean of all weights, owned parts, and ``replicated`` state."""
        member, learner, world = self._member, self._member.learner, self._member.world
        servers = member.strategy.servers
        own = parts[0].tensors["weights"].clone() if parts else learner.weights.clone()
        if parts:
            restore_weights(learner, parts, rates=False)
        self._restore_position(position, done=common["done"])
        strategy = member.active_strategy
        owned = strategy.owned_parts(learner)
        weight = 0.0 if owned is None else float(len(parts))
        await world.mean(learner.weights, weight)
        await learner.sync_optimizer("average", world, weight)
        for constant in learner.constants:
            await world.broadcast(constant.data, root=servers)
        for rank, ranges in enumerate(await gather_json(world, [[part.start, part.stop] for part in owned or ()])):
            for begin, end in ranges:
                known = own[begin:end].to(learner.weights) if world.rank == rank else learner.weights[begin:end].clone()
                learner.weights[begin:end].copy_(await world.broadcast(known, root=rank))
        if world.rank == servers and parts and common["warmup"] == member.in_warmup:
            restore_strategy(strategy, parts[0], strategy.replicated)
        for name in strategy.replicated:
            await world.broadcast(getattr(strategy, name), root=servers)
        if not member.in_warmup:
            member.reset_groups()  # as `setup` found them
        strategy.regroup(learner)
        self._agenda.hand_out_interval()


def _common(part: RankState) -> dict[str, Any]:
    """Return what all ranks need to know, also one that has no part."""
    names = ("schedule", "cut", "done", "warmup", "scores", "loss")
    return {name: part.state[name] for name in names if name in part.state} | {"now": part.state["runtime"]["now"]}
