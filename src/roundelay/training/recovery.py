"""Give all members equal state after a learner was lost or joined: what each reports, the plan, and the merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.learner import Learner
from roundelay.runtime import Membership
from roundelay.training.budget import Agenda, SyncInterval, untrained
from roundelay.training.checkpoint_files import CheckpointId, ReadableParts, newest_complete
from roundelay.training.checkpointer import Checkpointer
from roundelay.training.fingerprint import compare
from roundelay.training.member import Member

NEWCOMER_WAITS = "a newcomer waits to join"
"""The reason of a membership's end if no learner was lost."""


class MemberReport(msgspec.Struct):
    """What one rank has, for the plan of the next membership."""

    initial_rank: int = 0
    generation: int = -1
    """Of the membership that this rank merged into last."""
    interval_index: int = 0
    remaining: list[tuple[int, int]] = []
    """What remained of the interval when that membership began."""
    trained: list[int] = []
    """What this rank has trained of it since."""
    reason: str = ""
    """Why the last membership ended."""
    newcomer: bool = False
    """Set by the runtime if this rank was lost: its model and its minibatches do not count."""
    has_model: bool = False
    has_stepped: bool = False
    """Whether the optimizer has state."""
    owned_parts: list[tuple[int, int]] = []
    schedule: dict[str, Any] = {}
    rollback_lr_factor: float = 1.0
    attempt: int = 0
    intervals: list[SyncInterval] = []
    """Only of a rank that has the model: checkpoints may have divided some."""
    fingerprint: dict[str, str] | None = None
    checkpoints: ReadableParts | None = None
    """Only of a rank that does not have the model."""


class MembershipPlan(msgspec.Struct):
    """How all members continue."""

    interval_index: int
    remaining: list[tuple[int, int]]
    model_holders: list[int]
    """Ranks whose weights are the model; at the start of a run the first."""
    stepped: list[int]
    """Model holders whose optimizers have state."""
    owned_parts: list[tuple[int, int, int]]
    """Begin, end and owner."""
    schedule: dict[str, Any]
    rollback_lr_factor: float
    attempt: int
    intervals: list[SyncInterval]
    checkpoint: CheckpointId | None = None
    """Resume from this one."""
    damaged: list[str] = []
    """Messages about checkpoints that cannot be read."""


def make_report(
    member: Member, agenda: Agenda, checkpointer: Checkpointer | None, fingerprint: dict[str, str] | None, reason: str
) -> MemberReport:
    """Report what this rank has."""
    learner = member.learner
    has_model = member.has_model and not (learner.is_server and member.in_warmup)  # which leaves servers out
    owned = member.active_strategy.owned_parts(learner) if has_model else ()
    has_model = has_model and owned is not None
    return MemberReport(
        initial_rank=member.runtime.initial_rank,
        generation=member.generation,
        interval_index=agenda.interval_index,
        remaining=agenda.remaining,
        trained=member.tracker.trained,
        reason=reason,
        has_model=has_model,
        has_stepped=has_model and learner.optimizer is not None and bool(learner.optimizer.state),
        owned_parts=[(part.start, part.stop) for part in owned or ()],
        schedule=member.schedule_state,
        rollback_lr_factor=learner.rollback_lr_factor,
        attempt=checkpointer.attempt if checkpointer is not None else 0,
        intervals=agenda.intervals if has_model else [],
        fingerprint=fingerprint,
        checkpoints=checkpointer.readable_parts(member) if checkpointer is not None and not member.has_model else None,
    )


def make_plan(encoded: Sequence[dict[str, Any]], safe: Sequence[int]) -> dict[str, Any]:
    """Make the plan of all members; without a model holder, the model may come from a checkpoint.

    ``safe`` are the safe minibatches of lost ranks.  A `Mismatch` says in what the ranks differ.
    """
    reports = [msgspec.convert(each, MemberReport) for each in encoded]
    prints = [(f"rank {each.initial_rank}", each.fingerprint) for each in reports if each.fingerprint is not None]
    if prints:
        compare([given for _, given in prints], [name for name, _ in prints])
    reports = [
        msgspec.structs.replace(each, has_model=False, trained=[], remaining=[]) if each.newcomer else each
        for each in reports
    ]
    plan = _plan_regroup(reports, safe)
    readable = [report.checkpoints for report in reports if report.checkpoints is not None]
    if readable and not any(report.has_model for report in reports):
        plan.checkpoint = newest_complete(readable)
        plan.damaged = sorted({message for each in readable for message in each.damaged})
    encoded_plan: dict[str, Any] = msgspec.to_builtins(plan)
    return encoded_plan


def _plan_regroup(reports: Sequence[MemberReport], safe: Sequence[int]) -> MembershipPlan:
    """Plan from the reports of model holders alone.

    The furthest rank of the newest generation gives the remaining list; trained ones are removed from it.  A rank of an
    older generation has old weights, which do not count.  If all minibatches were trained, but some are lost with a
    learner, the last interval continues with them.
    """
    holders = [rank for rank, report in enumerate(reports) if report.has_model] or [0]
    newest = max(reports[rank].generation for rank in holders)
    holders = [rank for rank in holders if reports[rank].generation == newest]
    furthest = max((reports[rank] for rank in holders), key=lambda report: report.interval_index)
    trained = [report.trained for report in reports if report.generation == newest]
    remaining = untrained(furthest.remaining, [*trained, safe])
    last = len(furthest.intervals) - 1 if remaining and furthest.intervals else furthest.interval_index
    return MembershipPlan(
        interval_index=min(furthest.interval_index, last),
        remaining=remaining,
        model_holders=holders,
        stepped=[rank for rank in holders if reports[rank].has_stepped],
        owned_parts=[(*part, rank) for rank in holders for part in reports[rank].owned_parts],
        schedule=furthest.schedule,
        rollback_lr_factor=furthest.rollback_lr_factor,
        attempt=furthest.attempt,
        intervals=furthest.intervals,
    )


async def merge(member: Member, membership: Membership, plan: MembershipPlan) -> None:
    """Give all ranks the mean weights of the model holders, and owned parts from their owners.

    If it raises half-way, each rank still has its own weights or a mean, nothing in between.
    """
    learner, world, first = member.learner, member.world, plan.model_holders[0]
    owned = [(slice(begin, end), root) for begin, end, root in plan.owned_parts]
    copies = [await _broadcast_copy([learner.weights[part]], world, root) for part, root in owned]
    if len(plan.model_holders) == 1:
        await world.broadcast(learner.weights, root=first)
    else:
        await world.mean(learner.weights, weight=float(membership.rank in plan.model_holders))
    for (part, _), copied in zip(owned, copies, strict=True):
        learner.weights[part].copy_(copied)
    if plan.stepped and membership.generation:
        await _merge_moments(learner, world, membership.rank, plan)
    for constant in learner.constants:
        await world.broadcast(constant.data, root=first)
    if membership.generation:  # take over what the furthest model holder has decided since the run began
        if plan.schedule:
            member.restore_schedule(plan.schedule)
        learner.rollback_lr_factor = plan.rollback_lr_factor


async def _merge_moments(learner: Learner, world: Communicator, rank: int, plan: MembershipPlan) -> None:
    """Average the optimizer's state over the ranks that have stepped; a server's own part comes from the server."""
    stepped = plan.stepped
    owned = [(learner.moments(slice(begin, end)), root) for begin, end, root in plan.owned_parts if root in stepped]
    copies = [await _broadcast_copy(moments, world, root) for moments, root in owned]
    await learner.sync_optimizer("average", world, weight=float(rank in stepped))
    for (moments, _), copied in zip(owned, copies, strict=True):
        for moment, new in zip(moments, copied.split([moment.numel() for moment in moments]), strict=True):
            moment.copy_(new.view(moment.shape))


async def _broadcast_copy(tensors: Sequence[Tensor], world: Communicator, root: int) -> Tensor:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)
    return await world.broadcast(flat, root=root)
