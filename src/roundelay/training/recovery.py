"""How those who are here come to hold the same after somebody was lost or came, and when newcomers are let in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from roundelay.communicator import Communicator
from roundelay.learner import Learner
from roundelay.runtime import Membership
from roundelay.training.budget import SyncInterval, untrained

if TYPE_CHECKING:
    from roundelay.training.loop import Training

__all__ = ["WELCOME", "describe_state", "make_plan", "merge", "somebody_waits"]

WELCOME = "somebody waits to join"
"""Why an epoch ends where nobody was lost."""
ASK_EVERY = 10  # so many steps, or claims, between two looks for newcomers


def describe_state(training: Training) -> dict[str, Any]:
    """Say what we hold, for the plan of the next membership epoch."""
    learner, schedule = training.learner, training.schedule
    holds = training.holds and not (
        learner.is_server and training.acting is training.warming
    )  # which leaves servers out
    keeps = training.acting.owned_parts(learner) if holds else ()
    holds, keeps = holds and keeps is not None, keeps or ()
    state = getattr(schedule, "state", None)
    return {
        "holds": holds,
        "stepped": holds and learner.optimizer is not None and bool(learner.optimizer.state),
        "keeps": [(part.start, part.stop) for part in keeps],
        "schedule": state() if state is not None else {},
        "cut": learner.rollback_lr_factor,
        "attempt": training.saver.attempt if training.saver is not None else 0,
        "stretches": [dataclasses.astuple(stretch) for stretch in training.stretches] if holds else [],
    }


def make_plan(reports: Sequence[dict[str, Any]], safe: Sequence[int]) -> dict[str, Any]:
    """Make the plan that all go by: where the run stands, what is left of that stretch, who holds the model.

    The latest to have merged and, of them, the furthest know what was left then; what was trained before is not.
    Who has not merged with them holds old weights: those do not count.  Where all of it was trained, and somebody was
    lost who took some along, the last stretch goes on with that.
    """
    holders = [rank for rank, report in enumerate(reports) if report["holds"]] or [0]
    latest = max((reports[rank]["epoch"], reports[rank]["stretch"]) for rank in holders)
    holders = [rank for rank in holders if reports[rank]["epoch"] == latest[0]]
    known = next(reports[rank] for rank in holders if (reports[rank]["epoch"], reports[rank]["stretch"]) == latest)
    same = [report["trained"] for report in reports if report["epoch"] == known["epoch"]]
    left = untrained(known["left"], [*same, safe])
    last = len(known["stretches"]) - 1 if left and known.get("stretches") else known["stretch"]
    return {
        "stretch": min(known["stretch"], last),
        "left": left,
        "holders": holders,
        "stepped": [rank for rank in holders if reports[rank].get("stepped")],
        "kept": [(*part, rank) for rank in holders for part in reports[rank].get("keeps", ())],
        **{name: known[name] for name in ("schedule", "cut", "attempt", "stretches") if name in known},
    }


async def merge(training: Training, view: Membership) -> None:
    """Have all hold the mean of those who hold the model, and what only one of them knows from that one.

    Where it raises half-way, everyone still holds what it held, or a mean: nothing torn.
    """
    learner, world, plan = training.learner, training.world, view.plan
    kept = [(slice(begin, end), root) for begin, end, root in plan["kept"]]
    copies = [await _broadcast_copy([learner.weights[part]], world, root) for part, root in kept]
    if len(plan["holders"]) == 1:
        await world.broadcast(learner.weights, root=plan["holders"][0])
    else:
        await world.mean(learner.weights, weight=float(view.rank in plan["holders"]))
    for (part, _), copied in zip(kept, copies, strict=True):
        learner.weights[part].copy_(copied)
    if plan["stepped"] and view.generation:
        await _merge_moments(learner, world, view)
    for constant in learner.constants:
        await world.broadcast(constant.data, root=plan["holders"][0])
    if view.generation:
        _adopt(training, plan)


def _adopt(training: Training, plan: dict[str, Any]) -> None:
    """Take over what the furthest of those who hold the model has settled since the run began."""
    restore = getattr(training.schedule, "restore", None)
    if restore is not None and plan["schedule"]:
        restore(plan["schedule"])
    training.learner.rollback_lr_factor = plan["cut"]
    if training.saver is not None:
        training.saver.attempt = plan["attempt"]
    if plan["stretches"]:  # checkpoints have cut some of them
        training.stretches = [SyncInterval(*stretch) for stretch in plan["stretches"]]


async def _merge_moments(learner: Learner, world: Communicator, view: Membership) -> None:
    """Average the optimizer's state over those who have taken steps; what a server steps for, it knows best."""
    stepped = view.plan["stepped"]
    kept = [(learner.moments(slice(begin, end)), root) for begin, end, root in view.plan["kept"] if root in stepped]
    copies = [await _broadcast_copy(moments, world, root) for moments, root in kept]
    await learner.sync_optimizer("average", world, weight=float(view.rank in stepped))
    for (moments, _), copied in zip(kept, copies, strict=True):
        for moment, new in zip(moments, copied.split([moment.numel() for moment in moments]), strict=True):
            moment.copy_(new.view(moment.shape))


async def _broadcast_copy(tensors: Sequence[Tensor], world: Communicator, root: int) -> Tensor:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)
    return await world.broadcast(flat, root=root)


async def somebody_waits(training: Training) -> bool:
    """Tell, where that is known without a meeting, whether all are to meet and let newcomers in.

    All who step together are told the same.  Those who claim from a common counter are sent to the meeting by that
    counter: who sees a newcomer claims all that is left, and nobody gets any more of it.
    """
    claims, runtime = training.claims, training.runtime
    boundary = training.acting.join_interval
    every = boundary * -(-ASK_EVERY // boundary)
    if not runtime.elastic or claims.round == 0 or claims.round % every:
        return False
    if claims.counted:
        if claims.seat or not runtime.has_newcomers():
            return False
        await runtime.fetch_add(training.counter, len(claims.left))
        return True
    return claims.alone and runtime.has_newcomers(f"{training.stretch} {claims.round}")
